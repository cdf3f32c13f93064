import { type AtomicOptions, type BatchOptions, BatchResults } from "./batch.js";
import { type EventsOptions, type ServerEvent, events } from "./events.js";
import { type Call, type CallOptions, type ClientOptions, Http, part } from "./http.js";
import type * as api from "./types.js";

/** A precondition on the revision of what is changed. */
export interface IfMatch {
  /** Only if this is the revision, or with `"*"` only if it exists. */
  ifMatch?: number | "*";
}

/** A precondition of a set or a put. */
export interface Preconditions extends IfMatch {
  /** Only if nothing of that name exists. */
  ifNoneMatch?: "*";
}

/** A trace that goes on in the deliveries. */
export interface Trace {
  traceparent?: string;
  tracestate?: string;
}

export interface PostOptions extends CallOptions, Trace {
  /** What makes the set repeatable. Default: one is drawn for the call. With `null` none is sent, and nothing is repeated. */
  idempotencyKey?: string | null;
}

/** Where a lease is: what `ack`, `nack` and `extend` need of it. */
export type LeaseName = Pick<api.Lease, "queue" | "key" | "token">;

/**
 * Asks Countwheel over HTTP. A call throws a `CountwheelError`, or the reason of its `signal`.
 *
 * A call is repeated, within its `timeout`, if the service says that nothing was done, or if no answer came and a second
 * request does no more than the first.
 */
export class Client {
  private readonly http: Http;

  constructor(options: ClientOptions) {
    this.http = new Http(options);
  }

  /** Sets a timer, in place of any of its key. A repeat after a lost answer may name the state of its own first try in `replaced`. */
  set(queue: string, key: string, timer: api.SetTimer, options: Preconditions & Trace & CallOptions = {}): Promise<api.WasSet> {
    return this.json("PUT", timerPath(queue, key), "revision", options, {
      body: timer,
      headers: { ...preconditions(options), ...trace(options) },
      repeatable: true,
    });
  }

  /** Sets a timer under a key that the service draws. */
  async post(queue: string, timer: api.SetTimer, options: PostOptions = {}): Promise<api.WasPosted> {
    const key = options.idempotencyKey === undefined ? crypto.randomUUID() : options.idempotencyKey;
    const { body, headers } = await this.http.call({
      ...limits(options),
      method: "POST",
      path: `${queuePath(queue)}/timers`,
      headers: { "idempotency-key": key ?? undefined, ...trace(options) },
      body: timer,
      repeatable: key !== null,
      has: "revision",
    });
    return { ...(body as unknown as api.WasSet), replayed: headers.get("idempotency-replayed") === "true" };
  }

  /** Moves the deadline of a pending timer. A move by `by` without a revision is not repeated after a lost answer. */
  move(queue: string, key: string, to: api.Move, options: IfMatch & CallOptions = {}): Promise<api.Moved> {
    return this.json("PATCH", timerPath(queue, key), "old_due", options, {
      body: to,
      headers: preconditions(options),
      repeatable: !("by" in to) || typeof options.ifMatch === "number",
    });
  }

  /** Removes a timer: no attempt starts afterwards. */
  remove(queue: string, key: string, options: IfMatch & { only?: "pending" } & CallOptions = {}): Promise<api.Removed> {
    return this.json("DELETE", timerPath(queue, key), "was", options, {
      headers: preconditions(options),
      query: { only: options.only },
      repeatable: true,
    });
  }

  /** Shows a timer, with `body: "text"` also its body. */
  get(queue: string, key: string, options: { body?: "text" } & CallOptions = {}): Promise<api.Timer> {
    return this.json("GET", timerPath(queue, key), "state", options, { query: { body: options.body } });
  }

  /** The timers of a queue in order of their due times. Further pages are fetched as they are needed. */
  async *list(queue: string, filter: api.ListTimers = {}, options: CallOptions = {}): AsyncGenerator<api.Timer, void, undefined> {
    for await (const page of this.pages(queue, filter, options)) yield* page.items;
  }

  /** The same, page by page. A page may have no items although more follow. */
  pages(queue: string, filter: api.ListTimers = {}, options: CallOptions = {}): AsyncGenerator<api.TimerPage, void, undefined> {
    return this.paged(`${queuePath(queue)}/timers`, filter, options);
  }

  /** The timers of all queues, or of those whose names begin with `queue_prefix`, in order of their due times. */
  async *listAll(filter: api.ListAllTimers = {}, options: CallOptions = {}): AsyncGenerator<api.Timer, void, undefined> {
    for await (const page of this.pagesAll(filter, options)) yield* page.items;
  }

  /** The same, page by page. */
  pagesAll(filter: api.ListAllTimers = {}, options: CallOptions = {}): AsyncGenerator<api.TimerPage, void, undefined> {
    return this.paged("/v1/timers", filter, options);
  }

  /** The runs to come of a recurring timer. A schedule may have no end: the iteration ends with the schedule or with its caller. */
  async *runs(queue: string, key: string, filter: api.ListRuns = {}, options: CallOptions = {}): AsyncGenerator<api.NextRun, void, undefined> {
    for (let after = filter.after; ; ) {
      const query = { ...filter, after };
      const page = await this.json<api.NextRuns>("GET", `${timerPath(queue, key)}/runs`, "runs", options, { query });
      yield* page.runs;
      if (typeof page.next !== "string") return;
      after = page.next;
    }
  }

  /** Makes the runs of a recurring timer whose nominal times are past. A run is made once, so a repeat may find what its first try made. */
  backfill(queue: string, key: string, backfill: api.Backfill, options: Trace & CallOptions = {}): Promise<api.Backfilled> {
    const more = { body: backfill, headers: trace(options), repeatable: true };
    return this.json("POST", `${timerPath(queue, key)}:backfill`, "made", options, more);
  }

  /** Makes a pending timer due now. */
  fire(queue: string, key: string, options: CallOptions = {}): Promise<api.Moved> {
    return this.json("POST", `${timerPath(queue, key)}:fire`, "old_due", options);
  }

  /** Makes a dead timer pending from the start of its schedule, due now or when `when` says. */
  revive(queue: string, key: string, when?: api.Revive, options: CallOptions = {}): Promise<api.Moved> {
    return this.json("POST", `${timerPath(queue, key)}:revive`, "old_due", options, { body: when });
  }

  /** Sends a timer again that is done, dead or has failed. With a revision it is repeated after a lost answer. */
  resend(queue: string, key: string, resend: api.Resend = {}, options: IfMatch & Trace & CallOptions = {}): Promise<api.WasSet> {
    return this.json("POST", `${timerPath(queue, key)}:resend`, "revision", options, {
      body: resend,
      headers: { ...preconditions(options), ...trace(options) },
      repeatable: typeof options.ifMatch === "number",
    });
  }

  /** How many timers each queue has, over all pages. Counts may be of different moments. */
  async queues(filter: api.ListQueues = {}, options: CallOptions = {}): Promise<api.Queues> {
    let all: api.Queues = { queues: [], next: null };
    for await (const page of this.queuePages(filter, options)) {
      const exact = all.exact === false || page.exact === false ? { exact: false } : {};
      all = { ...page, ...exact, next: null, queues: [...all.queues, ...page.queues] };
    }
    return all;
  }

  /** The same, page by page. */
  async *queuePages(filter: api.ListQueues = {}, options: CallOptions = {}): AsyncGenerator<api.Queues, void, undefined> {
    for (let after = filter.after; ; ) {
      const page = await this.json<api.Queues>("GET", "/v1/queues", "queues", options, { query: { ...filter, after } });
      yield page;
      if (typeof page.next !== "string") return;
      after = page.next;
    }
  }

  /** The settings and the counts of a queue. */
  queue(queue: string, options: CallOptions = {}): Promise<api.Queue> {
    return this.json("GET", queuePath(queue), "queue", options);
  }

  /** Gives a queue settings, in place of all that it had. */
  putQueue(queue: string, settings: api.PutQueue, options: Preconditions & CallOptions = {}): Promise<api.Queue> {
    const headers = preconditions(options);
    return this.json("PUT", queuePath(queue), "queue", options, { body: settings, headers, repeatable: true });
  }

  /** Removes the settings of a queue. */
  removeQueue(queue: string, options: IfMatch & CallOptions = {}): Promise<api.QueueRemoved> {
    return this.json("DELETE", queuePath(queue), "removed", options, { headers: preconditions(options), repeatable: true });
  }

  /** Pauses a queue, or with `null` all: it takes timers, and starts none. */
  pause(queue: string | null, pause: api.Pause = {}, options: CallOptions = {}): Promise<api.Drained> {
    return this.json("POST", `${queuesPath(queue)}:pause`, "left", options, { body: pause, repeatable: true });
  }

  /**
   * Drains a queue, or with `null` all: it takes no timers. With mode `remove` the answer is the only copy of the
   * timers in it, so that call is not repeated after a lost answer.
   */
  drain(queue: string | null, drain: api.Drain, options: CallOptions = {}): Promise<api.Drained> {
    const repeatable = drain.mode !== "remove";
    return this.json("POST", `${queuesPath(queue)}:drain`, "left", options, { body: drain, repeatable });
  }

  /** Ends the pause or drain of a queue, or with `null` that of all. */
  resume(queue: string | null, options: CallOptions = {}): Promise<api.Resumed> {
    return this.json("POST", `${queuesPath(queue)}:resume`, "left", options, { repeatable: true });
  }

  /** Removes timers of a queue in the background. */
  purge(queue: string, filter: api.PurgeFilter = {}, options: CallOptions = {}): Promise<api.QueuePurge> {
    return this.json("POST", `${queuePath(queue)}:purge`, "purge", options, { body: filter });
  }

  /** Ends the purge of a queue. */
  cancelPurge(queue: string, options: CallOptions = {}): Promise<api.QueuePurge> {
    return this.json("POST", `${queuePath(queue)}:cancel-purge`, "purge", options);
  }

  /** Begins a job: it removes, moves, fires or revives many timers of a queue in the background. */
  beginJob(job: api.BeginJob, options: CallOptions = {}): Promise<api.Job> {
    return this.json("POST", "/v1/jobs", "matched", options, { body: job });
  }

  /** Shows a job. */
  job(id: number, options: CallOptions = {}): Promise<api.Job> {
    return this.json("GET", `/v1/jobs/${part(String(id))}`, "matched", options);
  }

  /** Shows all jobs. */
  jobs(options: CallOptions = {}): Promise<api.Jobs> {
    return this.json("GET", "/v1/jobs", "jobs", options);
  }

  /** Cancels a job. What was changed stays changed. */
  cancelJob(id: number, options: CallOptions = {}): Promise<api.Job> {
    return this.json("POST", `/v1/jobs/${part(String(id))}:cancel`, "matched", options, { repeatable: true });
  }

  /** Makes an endpoint, or puts another in its place. */
  putEndpoint(
    name: string,
    endpoint: api.PutEndpoint,
    options: Preconditions & CallOptions = {},
  ): Promise<api.Endpoint | api.EndpointChanged> {
    const headers = preconditions(options);
    return this.json("PUT", endpointPath(name), "endpoint", options, { body: endpoint, headers, repeatable: true });
  }

  /** Shows an endpoint, but nothing that is secret. */
  endpoint(name: string, options: CallOptions = {}): Promise<api.Endpoint> {
    return this.json("GET", endpointPath(name), "endpoint", options);
  }

  /** The endpoints in order of their names. Further pages are fetched as they are needed. */
  async *endpoints(filter: api.ListEndpoints = {}, options: CallOptions = {}): AsyncGenerator<api.Endpoint, void, undefined> {
    for (let after = filter.after; ; ) {
      const query = { ...filter, after };
      const page = await this.json<api.Endpoints>("GET", "/v1/endpoints", "endpoints", options, { query });
      yield* page.endpoints;
      if (typeof page.next !== "string") return;
      after = page.next;
    }
  }

  /** Removes an endpoint that no timer and no queue names. */
  removeEndpoint(name: string, options: IfMatch & CallOptions = {}): Promise<api.EndpointRemoved> {
    return this.json("DELETE", endpointPath(name), "removed", options, { headers: preconditions(options), repeatable: true });
  }

  /** Sends one request to an endpoint now, and says what came of it. */
  testEndpoint(name: string, test: api.TestEndpoint = {}, options: CallOptions = {}): Promise<api.EndpointTested> {
    // The attempt has the timeout of the endpoint, at most 30 s.
    return this.json("POST", `${endpointPath(name)}:test`, "attempt", options, { body: test, longer: 30_000 });
  }

  /** Makes a namespace, or puts other quotas in place of those that it had. */
  putNamespace(name: string, namespace: api.PutNamespace, options: Preconditions & CallOptions = {}): Promise<api.NamespaceAnswer> {
    const headers = preconditions(options);
    return this.json("PUT", namespacePath(name), "namespace", options, { body: namespace, headers, repeatable: true });
  }

  /** The quotas of a namespace, and in `usage` what it has of each. */
  namespace(name: string, options: CallOptions = {}): Promise<api.NamespaceAnswer> {
    return this.json("GET", namespacePath(name), "namespace", options);
  }

  /** All namespaces in order of their names, with their quotas and without their `usage`. */
  namespaces(options: CallOptions = {}): Promise<api.Namespaces> {
    return this.json("GET", "/v1/namespaces", "namespaces", options);
  }

  /** Removes a namespace that has no timers, queues, endpoints and tokens; of `default`, its quotas. */
  removeNamespace(name: string, options: IfMatch & CallOptions = {}): Promise<api.NamespaceRemoved> {
    return this.json("DELETE", namespacePath(name), "removed", options, { headers: preconditions(options), repeatable: true });
  }

  /** Makes a token, with a `namespace` one that opens nothing else. The answer alone has its secret, so that call is not repeated after a lost answer. */
  createToken(token: api.CreateToken, options: CallOptions = {}): Promise<api.TokenMade> {
    return this.json("POST", "/v1/tokens", "id", options, { body: token });
  }

  /** Shows all tokens in order of their ids, without their secrets. */
  tokens(options: CallOptions = {}): Promise<api.Tokens> {
    return this.json("GET", "/v1/tokens", "tokens", options);
  }

  /** Shows a token, without its secret. */
  token(id: string, options: CallOptions = {}): Promise<api.Token> {
    return this.json("GET", tokenPath(id), "id", options);
  }

  /**
   * Gives a token another secret. The one before counts for `overlap` still, by default not at all. The answer alone has
   * the new secret, so that call is not repeated after a lost answer.
   */
  rotateToken(id: string, rotate: api.RotateToken = {}, options: CallOptions = {}): Promise<api.TokenMade> {
    return this.json("POST", `${tokenPath(id)}:rotate`, "id", options, { body: rotate });
  }

  /** Revokes a token: it opens nothing any more. */
  revokeToken(id: string, options: IfMatch & CallOptions = {}): Promise<api.TokenRevoked> {
    return this.json("DELETE", tokenPath(id), "revoked", options, { headers: preconditions(options), repeatable: true });
  }

  /** The entries of the audit log, the newest first. Further pages are fetched as they are needed. */
  async *audit(filter: api.ListAudit = {}, options: CallOptions = {}): AsyncGenerator<api.AuditEntry, void, undefined> {
    for await (const page of this.auditPages(filter, options)) yield* page.items;
  }

  /** The same, page by page. A page may have no items although more follow; `unreadable` counts entries that cannot be read. */
  auditPages(filter: api.ListAudit = {}, options: CallOptions = {}): AsyncGenerator<api.AuditPage, void, undefined> {
    return this.paged("/v1/audit", filter, options);
  }

  /** When each attempt would come in a queue or at an endpoint, under which rules; under a retry policy; or each run of a schedule. */
  simulate(of: api.Simulate & ({ queue: string } | { endpoint: string }), options?: CallOptions): Promise<api.SimulatedThere>;
  simulate(of: api.Simulate & { retry: api.Retry; queue?: never; endpoint?: never }, options?: CallOptions): Promise<api.SimulatedAttempts>;
  simulate(of: api.Simulate & { retry?: never; queue?: never; endpoint?: never }, options?: CallOptions): Promise<api.SimulatedRuns>;
  simulate(of: api.Simulate, options: CallOptions = {}): Promise<api.SimulatedThere | api.SimulatedAttempts | api.SimulatedRuns> {
    const there = of.queue !== undefined || of.endpoint !== undefined;
    const has = there ? "from" : of.retry !== undefined ? "attempts" : "runs";
    return this.json("POST", "/v1/simulate", has, options, { body: of, repeatable: true });
  }

  /**
   * Does up to 1,000,000 operations in one request, and streams their results in the order of the operations. A batch is
   * never repeated: after an error, operations without a result may have been done.
   */
  batch(operations: Iterable<api.BatchOperation> | AsyncIterable<api.BatchOperation>, options: BatchOptions = {}): BatchResults {
    return new BatchResults(this.http, operations, options);
  }

  /** Does up to 10,000 operations whole or not at all. */
  async batchAtomic(operations: Iterable<api.BatchOperation>, options: AtomicOptions = {}): Promise<api.BatchResult[]> {
    const answer = await BatchResults.atomic(this.http, operations, options);
    return answer as api.BatchResult[];
  }

  /** Leases due timers of a pull queue. A lost answer may have leased timers; those come back when their leases end. */
  async lease(queue: string, request: api.LeaseRequest = {}, options: CallOptions = {}): Promise<api.Lease[]> {
    return (await this.leases(`${queuePath(queue)}:lease`, request, options)).leases;
  }

  /** Leases due timers of several pull queues. */
  async leaseFrom(request: api.LeaseOfQueues, options: CallOptions = {}): Promise<api.Lease[]> {
    return (await this.leases("/v1/leases", request, options)).leases;
  }

  /** Says that what was leased is done. */
  ack(lease: LeaseName, options?: CallOptions): Promise<api.LeaseResult>;
  /** The same of several leases: each result has a status of its own. */
  ack(leases: readonly LeaseName[], options?: CallOptions): Promise<api.LeaseResult[]>;
  ack(of: LeaseName | readonly LeaseName[], options: CallOptions = {}): Promise<api.LeaseResult | api.LeaseResult[]> {
    return this.settle("ack", isMany(of) ? of.map(name) : name(of), options);
  }

  /** Says that what was leased has failed: the next attempt comes as `retry` says, or as `outcome` does. */
  nack(lease: LeaseName, outcome: NackOutcome = {}, options: CallOptions = {}): Promise<api.LeaseResult> {
    return this.settle("nack", { ...outcome, ...name(lease) }, options) as Promise<api.LeaseResult>;
  }

  /** Lets a lease end so long from now. */
  extend(lease: LeaseName, length: api.Duration, options: CallOptions = {}): Promise<api.LeaseResult> {
    return this.settle("extend", { ...name(lease), lease: length }, options) as Promise<api.LeaseResult>;
  }

  /**
   * What happens to timers, queues and endpoints, as it happens. The stream goes on after a broken connection from the
   * last event; an event of kind `gap` says that some are missing.
   */
  events(options: EventsOptions = {}): AsyncGenerator<ServerEvent, void, undefined> {
    return events(this.http, options);
  }

  /** How many timers there are, how many are overdue, how many are due when, and what was done. */
  stats(options: CallOptions = {}): Promise<api.Stats> {
    return this.json("GET", "/v1/stats", "timers", options);
  }

  /** How many timers are due when. `next` is the `from` of the buckets that follow, if these are not all. */
  dueStats(query: api.DueStatsQuery = {}, options: CallOptions = {}): Promise<api.DueStats> {
    return this.json("GET", "/v1/stats/due", "buckets", options, { query });
  }

  /** Makes a snapshot of the store. */
  snapshot(snapshot: api.MakeSnapshot, options: CallOptions = {}): Promise<api.Snapshot> {
    return this.json("POST", "/v1/snapshots", "commit", options, { body: snapshot, longer: 600_000 });
  }

  /** The cluster at a glance. */
  cluster(options: CallOptions = {}): Promise<api.Cluster> {
    return this.json("GET", "/v1/cluster", "node", options);
  }

  /** The nodes of the cluster. */
  clusterNodes(options: CallOptions = {}): Promise<api.Nodes> {
    return this.json("GET", "/v1/cluster/nodes", "nodes", options);
  }

  /** The shards of the cluster. */
  clusterShards(options: CallOptions = {}): Promise<api.Shards> {
    return this.json("GET", "/v1/cluster/shards", "shards", options);
  }

  /** Whether the service works. */
  health(options: CallOptions = {}): Promise<api.Health> {
    return this.json("GET", "/healthz", "status", options);
  }

  private async *paged<Page extends { next: string | null }>(
    path: string,
    filter: { after?: string },
    options: CallOptions,
  ): AsyncGenerator<Page, void, undefined> {
    for (let after = filter.after; ; ) {
      const page = await this.json<Page>("GET", path, "items", options, { query: { ...filter, after } });
      yield page;
      if (typeof page.next !== "string") return;
      after = page.next;
    }
  }

  private async leases(path: string, request: api.LeaseRequest, options: CallOptions): Promise<{ leases: api.Lease[] }> {
    // The service waits for at most 60 s.
    const longer = request.wait === undefined ? 0 : typeof request.wait === "number" ? request.wait : 60_000;
    return await this.json("POST", path, "leases", options, { body: request, longer });
  }

  private async settle(verb: string, body: object, options: CallOptions): Promise<api.LeaseResult | api.LeaseResult[]> {
    // An outcome is guarded by its token, so a repeat does no more than the first.
    const has = verb === "extend" ? "leased_until" : "state";
    if (!Array.isArray(body)) return await this.json("POST", `/v1/leases:${verb}`, has, options, { body, repeatable: true });
    const items = { body: { items: body }, repeatable: true };
    return (await this.json<api.LeaseResults>("POST", `/v1/leases:${verb}`, "results", options, items)).results;
  }

  private async json<T>(method: Call["method"], path: string, has: string, options: CallOptions, more: Partial<Call> = {}): Promise<T> {
    const repeatable = method === "GET";
    return (await this.http.call({ method, path, has, repeatable, ...limits(options), ...more })).body as T;
  }
}

/** How a nack goes: when the next attempt comes, if one comes, and why. */
export type NackOutcome = Omit<api.Nack, "queue" | "key" | "token">;

function isMany(of: LeaseName | readonly LeaseName[]): of is readonly LeaseName[] {
  return Array.isArray(of);
}

function name({ queue, key, token }: LeaseName): LeaseName {
  return { queue, key, token };
}

function limits({ signal, timeout }: CallOptions): CallOptions {
  return { ...(signal !== undefined && { signal }), ...(timeout !== undefined && { timeout }) };
}

function preconditions({ ifMatch, ifNoneMatch }: Preconditions): Record<string, string | undefined> {
  return {
    "if-match": ifMatch === undefined ? undefined : ifMatch === "*" ? "*" : `"${ifMatch}"`,
    "if-none-match": ifNoneMatch,
  };
}

function trace({ traceparent, tracestate }: Trace): Record<string, string | undefined> {
  return { traceparent, tracestate };
}

function queuePath(queue: string): string {
  return `/v1/queues/${part(queue)}`;
}

function queuesPath(queue: string | null): string {
  return queue === null ? "/v1/queues" : queuePath(queue);
}

function timerPath(queue: string, key: string): string {
  return `${queuePath(queue)}/timers/${part(key)}`;
}

function tokenPath(id: string): string {
  return `/v1/tokens/${part(id)}`;
}

function namespacePath(name: string): string {
  return `/v1/namespaces/${part(name)}`;
}

function endpointPath(name: string): string {
  return `/v1/endpoints/${part(name)}`;
}
