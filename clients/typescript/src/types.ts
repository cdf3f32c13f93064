import type { components } from "./schema.js";

type Schemas = components["schemas"];

/** What the service refuses, it refuses as one of these. */
export type Problem = Schemas["Problem"];
/** A timer to be set. */
export type SetTimer = Schemas["SetTimer"];
/** What a set did. */
export type WasSet = Schemas["WasSet"];
/** What a set under a drawn key did. */
export interface WasPosted extends WasSet {
  /** Whether an earlier request with the same `Idempotency-Key` had set the timer. */
  replayed: boolean;
}
export type Timer = Schemas["Timer"];
export type State = Schemas["State"];
export type Attempt = Schemas["Attempt"];
export type Target = Schemas["Target"];
export type Retry = Schemas["Retry"];
export type Duration = Schemas["Duration"];
export type Time = Schemas["Time"];
export type Move = Schemas["Move"];
export type Moved = Schemas["Moved"];
export type Removed = Schemas["Removed"];
export type Revive = Schemas["Revive"];
export type Resend = Schemas["Resend"];
export type TimerPage = Schemas["TimerPage"];
/** Which timers of a queue a list has, and in which order. The service refuses what it does not know. */
export type ListTimers = Schemas["ListTimersQuery"];
/** The same over all queues. */
export type ListAllTimers = Schemas["ListAllTimersQuery"];
export type ListRuns = Schemas["ListRunsQuery"];
export type NextRun = Schemas["NextRun"];
export type NextRuns = Schemas["NextRuns"];
export type Backfill = Schemas["Backfill"];
export type Backfilled = Schemas["Backfilled"];
/** Which queues are shown. */
export type ListQueues = Schemas["ListQueuesQuery"];
export type Queues = Schemas["Queues"];
export type QueueCounts = Schemas["QueueCounts"];
export type Queue = Schemas["Queue"];
export type PutQueue = Schemas["PutQueue"];
export type QueueRemoved = Schemas["QueueRemoved"];
export type Pause = Schemas["Pause"];
export type Drain = Schemas["Drain"];
export type Drained = Schemas["Drained"];
export type Resumed = Schemas["Resumed"];
export type PurgeFilter = Schemas["PurgeFilter"];
export type QueuePurge = Schemas["QueuePurge"];
export type Endpoint = Schemas["Endpoint"];
export type EndpointChanged = Schemas["EndpointChanged"];
export type EndpointRemoved = Schemas["EndpointRemoved"];
export type Endpoints = Schemas["Endpoints"];
export type PutEndpoint = Schemas["PutEndpoint"];
export type ListEndpoints = Schemas["ListEndpointsQuery"];
export type TestEndpoint = Schemas["TestEndpoint"];
export type EndpointTested = Schemas["EndpointTested"];
/** The quotas of a namespace to be made. */
export type PutNamespace = Schemas["PutNamespace"];
/** How much a namespace may have. */
export type Quotas = Schemas["Quotas"];
/** A namespace with its quotas, and in `usage` what it has of each; a list has no `usage`. */
export type NamespaceAnswer = Schemas["NamespaceAnswer"];
export type NamespaceUsage = Schemas["NamespaceUsage"];
export type NamespaceRemoved = Schemas["NamespaceRemoved"];
export type Namespaces = Schemas["Namespaces"];
/** A token to be made. */
export type CreateToken = Schemas["CreateToken"];
/** How a token gets another secret. */
export type RotateToken = Schemas["RotateToken"];
/** A token without its secret. */
export type Token = Schemas["Token"];
/** A token with its secret in `token`, unless a certificate stands for it. */
export type TokenMade = Schemas["TokenMade"];
export type TokenRevoked = Schemas["TokenRevoked"];
export type Tokens = Schemas["Tokens"];
/** Which entries of the audit log are shown, and in which order. */
export type ListAudit = Schemas["ListAuditQuery"];
export type AuditPage = Schemas["AuditPage"];
export type AuditEntry = Schemas["AuditEntry"];
export type BeginJob = Schemas["BeginJob"];
export type Job = Schemas["Job"];
export type Jobs = Schemas["Jobs"];
export type Simulate = Schemas["Simulate"];
export type SimulatedAttempts = Schemas["SimulatedAttempts"];
export type SimulatedRuns = Schemas["SimulatedRuns"];
export type SimulatedThere = Schemas["SimulatedThere"];
export type Stats = Schemas["Stats"];
export type DueStats = Schemas["DueStats"];
export type DueStatsQuery = Schemas["GetDueStatsQuery"];
export type DueBucket = Schemas["DueBucket"];
/** The data of an event: what it does not tell is not there. */
export type EventData = Schemas["Gap"] & Partial<Schemas["Event"]>;
/** What has happened, as this version of the service says it. */
export type EventKind = Schemas["Event"]["kind"];
export type BatchOperation = Schemas["BatchOperation"];
export type BatchLine = Schemas["BatchLine"];
export type BatchEnd = Schemas["BatchEnd"];
export type BatchResult = Schemas["BatchResult"];
export type LeaseRequest = Schemas["LeaseRequest"];
export type LeaseOfQueues = Schemas["LeaseOfQueues"];
export type Lease = Schemas["Lease"];
export type Ack = Schemas["Ack"];
export type Nack = Schemas["Nack"];
export type Extend = Schemas["Extend"];
export type LeaseResult = Schemas["LeaseResult"];
export type LeaseResults = Schemas["LeaseResults"];
export type MakeSnapshot = Schemas["MakeSnapshot"];
export type Snapshot = Schemas["Snapshot"];
export type Cluster = Schemas["Cluster"];
export type Nodes = Schemas["Nodes"];
export type Shards = Schemas["Shards"];
export type Health = Schemas["Health"];
