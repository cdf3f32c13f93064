/** The answer that a handled delivery was given, for its repeats. */
export interface Given {
  status: number;
  /** `timer-next` and `timer-stop`, if the answer had them. */
  headers: [name: string, value: string][];
}

/** What is known of a delivery that has come. */
export type Begun =
  /** It is new, and belongs to the caller until `done` or `failed`. */
  | { state: "new" }
  /** It is under way elsewhere. */
  | { state: "busy" }
  /** It was handled, and this was the answer. */
  | { state: "done"; given: Given };

/** Remembers by `webhook-id` which deliveries were handled. Several receivers may share one. */
export interface SeenStore {
  /** Notes that a delivery is under way, unless it is known: at once, for all who share the store. */
  begin(id: string): Promise<Begun> | Begun;
  /** Notes that a delivery was handled. */
  done(id: string, given: Given): Promise<void> | void;
  /** Forgets a delivery that was not handled: its next attempt is new. */
  failed(id: string): Promise<void> | void;
}

export interface MemoryStoreOptions {
  /** How many handled deliveries are remembered; the oldest give way. Default: 65,536. */
  capacity?: number;
  /** For how long, in milliseconds. Default: 24 h. */
  keep?: number;
  /** Milliseconds of a time line that never goes back. */
  now?: () => number;
}

/** Remembers handled deliveries in memory, as long as the process lives. */
export class MemoryStore implements SeenStore {
  private readonly underWay = new Set<string>();
  /** In the order in which they were handled. */
  private readonly handled = new Map<string, { given: Given; until: number }>();
  private readonly capacity: number;
  private readonly keep: number;
  private readonly now: () => number;

  constructor(options: MemoryStoreOptions = {}) {
    this.capacity = options.capacity ?? 65_536;
    this.keep = options.keep ?? 24 * 60 * 60 * 1_000;
    this.now = options.now ?? (() => performance.now());
  }

  begin(id: string): Begun {
    const known = this.handled.get(id);
    if (known !== undefined && known.until > this.now()) return { state: "done", given: known.given };
    if (this.underWay.has(id)) return { state: "busy" };
    this.underWay.add(id);
    return { state: "new" };
  }

  done(id: string, given: Given): void {
    this.underWay.delete(id);
    this.handled.delete(id);
    this.handled.set(id, { given, until: this.now() + this.keep });
    for (const [oldest, { until }] of this.handled) {
      if (this.handled.size <= this.capacity && until > this.now()) break;
      this.handled.delete(oldest);
    }
  }

  failed(id: string): void {
    this.underWay.delete(id);
  }

  /** How many handled deliveries are remembered. */
  get size(): number {
    return this.handled.size;
  }
}
