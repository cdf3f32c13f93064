// Written by scripts/generate.mjs from docs/openapi.json: change the document, and then run `npm run generate`.

export interface components {
    schemas: {
        /** @description The attempt is done. */
        Ack: {
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
            /** @description The token of the lease. */
            token: string;
        };
        /** @description The same for several leases. */
        Acks: {
            /** @description One for each lease. */
            items: components["schemas"]["Ack"][];
        };
        /** @description Between which delays the receiver may choose the next run. */
        Adaptive: {
            /** @description The longest. */
            max: components["schemas"]["Duration"];
            /** @description The shortest. */
            min: components["schemas"]["Duration"];
        };
        /** @description Between which delays the receiver may choose the next run. */
        AdaptiveBounds: {
            /** @description The longest. */
            max: components["schemas"]["DurationText"];
            /** @description The shortest. */
            min: components["schemas"]["DurationText"];
        };
        /** @description One attempt of a timer. */
        Attempt: {
            /** @description What the target answered. */
            answer?: components["schemas"]["TargetAnswer"];
            /** @description The status of the answer, or why there was none. */
            detail?: string;
            /** @description When the attempt was due. */
            due: components["schemas"]["Time"];
            /** @description When the attempt ended. */
            ended?: components["schemas"]["Time"];
            /** @description For how long the attempt was held, in microseconds. */
            held_us: number;
            /** @description How late the attempt was, in microseconds. */
            late_us?: number;
            /** @description The number of the attempt. */
            number: number;
            /**
             * @description What came of the attempt.
             * @enum {string}
             */
            result?: "done" | "failed" | "stopped" | "interrupted" | "lost";
            /** @description Of a recurring timer: the number of its run. */
            run?: number;
            /** @description When the attempt started. */
            started: components["schemas"]["Time"];
        };
        /** @description A change, and who has asked for it. */
        AuditEntry: {
            /**
             * @description What was done to a timer.
             * @enum {string}
             */
            action?: "set" | "move" | "remove" | "fire" | "revive";
            /** @description How it stood after; null if there was none any more. */
            after: components["schemas"]["AuditStood"] | null;
            /** @description When. */
            at: components["schemas"]["Time"];
            /** @description How it stood before; null if there was none. */
            before: components["schemas"]["AuditStood"] | null;
            /** @description The names of the certificate that the caller has shown. */
            certificate?: string;
            /** @description What was asked for, of a job, a purge and a drain. */
            details?: unknown;
            /** @description The fields of a setting that changed. */
            fields: components["schemas"]["AuditField"][];
            /** @description The address of the caller, a /64 of IPv6, or the user at a socket. */
            from?: string;
            /** @description The id of the entry. */
            id: string;
            /** @description Until when the entry is kept. */
            kept_until: components["schemas"]["Time"];
            /** @description The key of the timer. */
            key?: string;
            /** @description The operationId of the request. */
            operation?: string;
            /** @description The queue of the timer. */
            queue?: string;
            /** @description The X-Request-Id of the request. */
            request?: string;
            /** @description The setting: its kind, / and its name. */
            setting?: string;
            /** @description Who has asked. */
            who: components["schemas"]["AuditWho"];
        };
        /** @description A field of a setting that is another than before. A value that is long or could be a secret is left out. */
        AuditField: {
            /** @description The value after, if it is shown. */
            after?: unknown;
            /** @description The value before, if it is shown. */
            before?: unknown;
            /** @description The name of the field. */
            field: string;
        };
        /** @description A page of the audit log. */
        AuditPage: {
            /** @description The entries. */
            items: components["schemas"]["AuditEntry"][];
            /** @description The cursor of the next page; null at the end. A page with fewer entries than it may have can have one behind it. */
            next: string | null;
            /** @description How many entries of the page cannot be read. */
            unreadable?: number;
        };
        /** @description How a timer or a setting stood. */
        AuditStood: {
            /** @description How many attempts of a timer had begun. */
            attempts?: number;
            /** @description When a timer was due. */
            due?: components["schemas"]["Time"];
            /** @description The revision. */
            revision?: number;
            /**
             * @description The state of a timer.
             * @enum {string}
             */
            state?: "pending" | "delivering" | "done" | "dead" | "unreadable";
        };
        /** @description Who has asked. */
        AuditWho: {
            /** @description The id of the token. */
            id?: string;
            /**
             * @description Whoever had a token that is stored, or that was given to the program; anyone, where no token was needed; the service itself; whoever has made a token in the data directory.
             * @enum {string}
             */
            kind: "token" | "configured" | "anyone" | "service" | "directory";
            /** @description The name that the token had. */
            name?: string;
            /** @description Whether it was somebody at the pages. */
            session?: boolean;
        };
        /** @description For which nominal times of the past runs are made. */
        Backfill: {
            /** @description Nothing is made. Default: false. */
            dry_run?: boolean;
            /** @description The first. */
            from: components["schemas"]["Time"];
            /** @description How many runs are made at the most. Default: all, if they are at most 1,000. */
            limit?: number;
            /** @description The last, not in the future. */
            until: components["schemas"]["Time"];
        };
        /** @description What a backfill has made. */
        Backfilled: {
            /** @description Whether nothing was made. */
            dry_run: boolean;
            /** @description How many runs were there. */
            existing: number;
            /** @description How many runs were made. */
            made: number;
            /** @description From where to go on; null at the end. */
            next: components["schemas"]["Time"] | null;
            /** @description The runs. */
            runs: components["schemas"]["BackfilledRun"][];
        };
        /** @description A run of the past. */
        BackfilledRun: {
            /** @description The key of its timer. */
            key: string;
            /** @description The nominal time. */
            nominal: components["schemas"]["Time"];
            /**
             * @description What became of it; new in a dry run.
             * @enum {string}
             */
            result: "made" | "exists" | "new";
        };
        /** @description A leased attempt is done. */
        BatchAck: {
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /**
             * @description The operation.
             * @enum {string}
             */
            op: "ack";
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
            /** @description The token of the lease. */
            token: string;
        };
        BatchAnswerLine: components["schemas"]["BatchLine"] | components["schemas"]["BatchEnd"];
        /** @description The last line of a batch. */
        BatchEnd: {
            /** @description Whether the batch was read to its end. */
            end: boolean;
            /** @description How many of them were refused. */
            failed: number;
            /** @description How many operations were begun. */
            operations: number;
            /**
             * @description Why it was not.
             * @enum {string}
             */
            reason?: "too_many" | "timeout" | "unauthorized" | "shutdown" | "broken" | "moved" | "gone";
            /** @description How many of them succeeded. */
            succeeded: number;
        };
        /** @description Makes a timer due now. */
        BatchFire: {
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /**
             * @description The operation.
             * @enum {string}
             */
            op: "fire";
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
        };
        /** @description The result of one operation of a batch. */
        BatchLine: {
            /** @description The attempt of a removed timer that may still arrive. */
            attempt?: number;
            /** @description The ceiling that forbids the operation. */
            ceiling?: string | number;
            /** @description Why the operation was refused. */
            code?: string;
            /** @description The same in words. */
            detail?: string;
            /** @description When the timer is due now, or was when it was removed. */
            due?: components["schemas"]["Time"];
            /** @description The field at fault. */
            errors?: components["schemas"]["FieldError"][];
            /** @description The number of the operation, from 0. */
            i: number;
            /** @description The id of a timer that was set. */
            id?: string;
            /** @description Of a lost lease: the key of the timer. */
            key?: string;
            /** @description When the lease of another worker ends. */
            leased_until?: components["schemas"]["Time"];
            /** @description When the timer was due. */
            old_due?: components["schemas"]["Time"];
            /** @description Of a lost lease: the queue of the timer. */
            queue?: string;
            /**
             * @description The quota that forbids the operation.
             * @enum {string}
             */
            quota?: "timers" | "bytes" | "queues" | "endpoints" | "rate" | "connections";
            /** @description The state of the timer that a set replaced. */
            replaced?: ("pending" | "delivering" | "done" | "dead") | null;
            /** @description The revision of the timer. */
            revision?: number;
            /** @description The state of the timer. */
            state?: components["schemas"]["State"];
            /** @description The status of the operation. */
            status: number;
            /** @description What a removed timer was doing. */
            was?: string;
            /** @description Who has the lease by now. */
            worker?: string;
        };
        /** @description Moves a timer. */
        BatchMove: {
            /** @description A time. */
            at?: components["schemas"]["Time"];
            /** @description A signed duration from the present deadline. */
            by?: components["schemas"]["SignedDuration"];
            /** @description The revision that the timer has to have, or *. */
            if_match?: number | string;
            /** @description A duration from now. */
            in?: components["schemas"]["Duration"];
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /**
             * @description The operation.
             * @enum {string}
             */
            op: "move";
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
        };
        /** @description A leased attempt has failed. */
        BatchNack: {
            /** @description Whether no attempt follows. Default: false. */
            dead?: boolean;
            /** @description Why, kept with the attempt. Default: nacked. */
            detail?: string;
            /** @description When the next attempt comes: at most 365 days. Default: as the retry policy says. */
            in?: components["schemas"]["Duration"];
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /**
             * @description The operation.
             * @enum {string}
             */
            op: "nack";
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
            /** @description The token of the lease. */
            token: string;
        };
        BatchOperation: components["schemas"]["BatchSet"] | components["schemas"]["BatchMove"] | components["schemas"]["BatchRemove"] | components["schemas"]["BatchFire"] | components["schemas"]["BatchRevive"] | components["schemas"]["BatchAck"] | components["schemas"]["BatchNack"];
        /** @description Removes a timer. */
        BatchRemove: {
            /** @description The revision that the timer has to have, or *. */
            if_match?: number | string;
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /**
             * @description Only a timer in this state.
             * @enum {string}
             */
            only?: "pending";
            /**
             * @description The operation.
             * @enum {string}
             */
            op: "remove";
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
        };
        /** @description What came of one operation of a batch: of its own request, or the refusal. */
        BatchResult: {
            /** @description The attempt of a removed timer that may still arrive. */
            attempt?: number;
            /** @description The ceiling that forbids the operation. */
            ceiling?: string | number;
            /** @description Why the operation was refused. */
            code?: string;
            /** @description The same in words. */
            detail?: string;
            /** @description When the timer is due now, or was when it was removed. */
            due?: components["schemas"]["Time"];
            /** @description The field at fault. */
            errors?: components["schemas"]["FieldError"][];
            /** @description The id of a timer that was set. */
            id?: string;
            /** @description Of a lost lease: the key of the timer. */
            key?: string;
            /** @description When the lease of another worker ends. */
            leased_until?: components["schemas"]["Time"];
            /** @description When the timer was due. */
            old_due?: components["schemas"]["Time"];
            /** @description Of a lost lease: the queue of the timer. */
            queue?: string;
            /**
             * @description The quota that forbids the operation.
             * @enum {string}
             */
            quota?: "timers" | "bytes" | "queues" | "endpoints" | "rate" | "connections";
            /** @description The state of the timer that a set replaced. */
            replaced?: ("pending" | "delivering" | "done" | "dead") | null;
            /** @description The revision of the timer. */
            revision?: number;
            /** @description The state of the timer. */
            state?: components["schemas"]["State"];
            /** @description The status of the operation. */
            status: number;
            /** @description What a removed timer was doing. */
            was?: string;
            /** @description Who has the lease by now. */
            worker?: string;
        };
        /** @description What came of an atomic batch. */
        BatchResults: {
            /** @description In the order of the operations. */
            results: components["schemas"]["BatchResult"][];
        };
        /** @description Revives a dead timer. */
        BatchRevive: {
            /** @description A time. */
            at?: components["schemas"]["Time"];
            /** @description A duration from now. */
            in?: components["schemas"]["Duration"];
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /**
             * @description The operation.
             * @enum {string}
             */
            op: "revive";
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
        };
        /** @description Sets a timer. */
        BatchSet: {
            /** @description The receiver may say when the next run is, within these bounds. */
            adaptive?: components["schemas"]["Adaptive"];
            /** @description A time, at most 36,525 days ahead. */
            at?: components["schemas"]["Time"];
            /** @description Any value, delivered as JSON byte for byte; with content_type, a text. Default: empty. */
            body?: unknown;
            /** @description In place of body: bytes, as base64. */
            body_base64?: string;
            /**
             * Format: media-type
             * @description The content-type of the delivery; body is a text then. Default: application/json for a body, application/octet-stream for a body_base64.
             */
            content_type?: string;
            /**
             * Format: cron-expression
             * @description The timer recurs at the times that this expression names.
             */
            cron?: string;
            /** @description The timer recurs at a fixed rate. */
            every?: components["schemas"]["Duration"];
            /** @description The timer recurs, this long after the end of each run. */
            every_after?: components["schemas"]["Duration"];
            /** @description The revision that the timer has to have, or *. */
            if_match?: number | string;
            /**
             * @description The timer must not exist.
             * @enum {string}
             */
            if_none_match?: "*";
            /** @description A duration from now, at most 36,525 days. */
            in?: components["schemas"]["Duration"];
            /** @description Each run is due between its nominal time and this much later. Default: none. */
            jitter?: components["schemas"]["Duration"];
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /** @description The rule for a timer that is overdue. Default: that of the queue, else fire. */
            missed?: components["schemas"]["Missed"];
            /**
             * @description The operation.
             * @enum {string}
             */
            op: "set";
            /**
             * @description The rule for a run that comes due before the run before it has ended. Default: that of the queue, else skip.
             * @enum {string}
             */
            overlap?: "skip" | "queue";
            /** @description 0 is the most urgent of those that wait for one place. Default: that of the queue. */
            priority?: number;
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
            /** @description How many runs are made in all. Default: no end. */
            repeats?: number;
            /** @description The retry policy. Default: that of the endpoint, else that of the queue, else 20 attempts. */
            retry?: components["schemas"]["Retry"];
            /** @description Of the timers with one serial key, one is delivered at a time. */
            serial_key?: components["schemas"]["Key"];
            /** @description The timer is due at a time drawn evenly up to this much later, at most a day. */
            spread?: components["schemas"]["Duration"];
            /** @description Texts by which lists and jobs find the timer, none of them twice. Default: none. */
            tags?: components["schemas"]["Tag"][];
            /** @description Where the timer is delivered; required unless the queue has an endpoint or is pulled. Default: the endpoint of the queue. */
            target?: components["schemas"]["Target"];
            /** @description No run has a nominal time after this. Default: no end. */
            until?: components["schemas"]["Time"];
            /**
             * Format: time-zone
             * @description The time zone of cron, an IANA name. Default: UTC.
             */
            zone?: string;
        };
        /** @description A job: one change of many timers of a queue. */
        BeginJob: {
            /**
             * @description What the job does to each timer.
             * @enum {string}
             */
            action: "remove" | "move" | "fire" | "revive";
            /** @description The job counts the timers, and changes none. Default: false. */
            dry_run?: boolean;
            /** @description Which timers it changes. */
            filter: components["schemas"]["JobFilter"];
            /** @description With the action move: where to. */
            move?: components["schemas"]["Move"];
            /** @description The queue. */
            queue: components["schemas"]["QueueName"];
            /** @description How many timers are changed each second at the most. Default: no limit. */
            rate?: number;
        };
        /** @description When an endpoint is left alone, and for how long. */
        Breaker: {
            /** @description After so many failures in a row. */
            failures: number;
            /** @description The first pause. */
            pause: components["schemas"]["DurationText"];
            /** @description The longest pause. */
            pause_max: components["schemas"]["DurationText"];
        };
        /** @description What the service shows in TLS. */
        ClientCertificate: {
            /** @description Certificates in PEM. */
            certificate: string;
        };
        /** @description Deliveries are events of this source and type. */
        CloudEvents: {
            /** @description A URI reference. */
            source: string;
            /** @description The type of the event. */
            type: string;
        };
        /** @description The cluster at a glance. */
        Cluster: {
            /** @description When it looked, by the clock of the database. */
            as_of: components["schemas"]["Time"];
            /** @description How far its clock is ahead of that of the database, in milliseconds. */
            clock_offset_ms: number;
            /** @description The database. */
            database: components["schemas"]["Database"];
            /** @description What happened, the latest first. */
            events: components["schemas"]["ClusterEvent"][];
            /** @description What is left of its lease, in milliseconds. */
            lease_left_ms: number;
            /** @description The node that answers. */
            node: string;
            /** @description How many nodes there are. */
            nodes: components["schemas"]["NodeCounts"];
            /** @description How many shards there are. */
            shards: components["schemas"]["ShardCounts"];
        };
        /** @description What happened to a shard or to this node. */
        ClusterEvent: {
            /** @description When it happened. */
            at: components["schemas"]["Time"];
            /** @description More of it. */
            detail: string;
            /** @description What happened. */
            event: string;
            /** @description The shard. */
            shard: number | null;
        };
        /** @description A token to be made. */
        CreateToken: {
            /** @description The name of a certificate that stands for the token, such as dns:worker.example. The token has no secret then. Default: a secret. */
            certificate?: string;
            /** @description After how long the token opens nothing any more: 1 s to 3,650 days. Default: never. */
            expires_in?: components["schemas"]["Duration"];
            /** @description What the token is for: up to 128 bytes. */
            name: string;
            /** @description The namespace that it is of: it opens what is in there. Default: the whole service, or the namespace of the token that makes it. */
            namespace?: components["schemas"]["Namespace"];
            /** @description What the token opens. */
            scopes: ("read" | "write" | "deliver" | "metrics" | "admin")[];
        };
        /** @description The database of a cluster. */
        Database: {
            /** @description How durable a commit is. */
            durability: string | null;
            /** @description The age of the oldest snapshot, in milliseconds. */
            oldest_snapshot_ms: number | null;
            /** @description Whether it answers. */
            reachable: boolean;
            /** @description The database with its major version. */
            server: string | null;
            /** @description The synchronous standbys that are connected. */
            sync: string[] | null;
        };
        /** @description What cannot be read or done, while everything else goes on. */
        Degraded: {
            /** @description The reason in words. */
            detail?: string;
            /** @description The file of the store. */
            file?: string;
            /** @description The reason in one word. */
            reason: string;
            /** @description When it was seen first. */
            since?: components["schemas"]["Time"];
        };
        /** @description How far the buckets of delays are from where the wall clock shows them now, in microseconds. */
        DelaysDrift: {
            /** @description The least. */
            least: number;
            /** @description The most. */
            most: number;
        };
        /** @description What was done between two moments. */
        DoneRecently: {
            /** @description Attempts that were started. */
            attempts: number;
            /** @description Timers that were given up. */
            dead: number;
            /** @description Attempts that are done. */
            done: number;
            /** @description Attempts that failed. */
            failed: number;
            /** @description The first moment. */
            from: components["schemas"]["Time"];
            /** @description Timers that were moved. */
            moved: number;
            /** @description Timers that were removed. */
            removed: number;
            /** @description Timers that were set. */
            set: number;
            /** @description The first moment behind it. */
            until: components["schemas"]["Time"];
        };
        /** @description What was done. */
        DoneSoFar: {
            /** @description Attempts that were started. */
            attempts: number;
            /** @description Timers that were given up. */
            dead: number;
            /** @description Attempts that are done. */
            done: number;
            /** @description Attempts that failed. */
            failed: number;
            /** @description Timers that were moved. */
            moved: number;
            /** @description Timers that were removed. */
            removed: number;
            /** @description Timers that were set. */
            set: number;
        };
        /** @description How a queue is drained. */
        Drain: {
            /** @description With mode fire: nothing starts after this. */
            at?: components["schemas"]["Time"];
            /** @description With mode fire: nothing starts later than this from now. */
            in?: components["schemas"]["Duration"];
            /**
             * @description What becomes of the timers.
             * @enum {string}
             */
            mode: "fire" | "hold" | "remove";
        };
        /** @description How a queue is drained or paused. */
        DrainState: {
            /**
             * @description The mode.
             * @enum {string}
             */
            mode: "pause" | "fire" | "hold" | "remove";
            /** @description When it ends, or nothing starts any more. */
            until?: components["schemas"]["Time"];
        };
        /** @description A queue, or all of them, that was paused or drained. */
        Drained: {
            /** @description The pause or drain. */
            drain: components["schemas"]["DrainState"];
            /** @description How many timers are left. */
            left: components["schemas"]["Left"];
            /** @description The queue; null for all. */
            queue: string | null;
            /** @description With mode remove: the timers, which are nowhere else. */
            removed?: components["schemas"]["HandedBack"][];
        };
        /** @description How many timers pend that are due within a span of time. */
        DueBucket: {
            /** @description The first moment of the span. */
            from: components["schemas"]["Time"];
            /** @description How many there are. */
            timers: number;
            /** @description The first moment behind the span; null for whenever later. */
            until: components["schemas"]["Time"] | null;
        };
        /** @description How many timers are due when. */
        DueStats: {
            /** @description When they were counted. */
            as_of: components["schemas"]["Time"];
            /** @description In order of time, those with timers. */
            buckets: components["schemas"]["DueBucket"][];
            /** @description How far the clocks are apart. */
            delays_drift_micros: components["schemas"]["DelaysDrift"];
            /** @description false if a count may be wrong. */
            exact?: boolean;
            /** @description Where to go on; null at the end. */
            next: components["schemas"]["Time"] | null;
            /** @description How many nodes the figures are of. */
            nodes: number;
            /** @description Those before the first bucket. */
            overdue: components["schemas"]["Overdue"] | null;
        };
        /** @description A whole number of milliseconds, or a text such as 30m, 1h 30m, 250ms, 7d or PT30M. */
        Duration: number | string;
        /** @description A duration as answers write it: 1m 30s. */
        DurationText: string;
        /** @description An endpoint, of which nothing secret is shown. */
        Endpoint: {
            /** @description The only places where deliveries go. */
            allow?: string[];
            /** @description After how long without a success it is disabled. */
            auto_disable?: components["schemas"]["DurationText"];
            /** @description When it is left alone. */
            breaker?: components["schemas"]["Breaker"];
            /** @description Certificates in PEM that the endpoint's comes from. */
            ca?: string;
            /** @description What the service shows in TLS. */
            client_certificate?: components["schemas"]["ClientCertificate"];
            /** @description How many attempts may run at a time. */
            concurrency?: number;
            /** @description Whether no attempt starts. */
            disabled: boolean;
            /** @description When the service has disabled it. */
            disabled_at?: components["schemas"]["Time"];
            /** @description Why the service has disabled it. */
            disabled_reason?: string;
            /** @description The proxy of its deliveries. */
            egress_proxy?: string;
            /** @description The name. */
            endpoint: string;
            /** @description Why no attempt is made. */
            fault?: string;
            /** @description Sent with each delivery. */
            headers: components["schemas"]["Headers"];
            /** @description How it does. */
            health: components["schemas"]["EndpointHealth"];
            /**
             * @description The HTTP, unless it is auto.
             * @enum {string}
             */
            http?: "auto" | "1.1";
            /** @description How many attempts may start. */
            rate?: components["schemas"]["RateLimit"];
            /** @description The policy of timers that name none. */
            retry?: components["schemas"]["Retry"];
            /** @description The revision. */
            revision: number;
            /** @description Whether what is secret is sealed in the store. */
            sealed?: boolean;
            /** @description What signs deliveries. */
            secrets: components["schemas"]["Secret"][];
            /** @description What statuses of answers mean. */
            statuses?: components["schemas"]["Statuses"];
            /** @description One deadline for a whole attempt. */
            timeout?: components["schemas"]["DurationText"];
            /** @description The URL. */
            url: string;
        };
        /** @description An endpoint that another caller has changed before the answer was written. */
        EndpointChanged: {
            /** @description The name. */
            endpoint: string;
            /** @description The revision of this change. */
            revision: number;
        };
        /** @description How an endpoint does, as the node that answers sees it. */
        EndpointHealth: {
            /** @description How many failures there were in a row. */
            failures: number;
            /** @description The last failure. */
            last_failure?: components["schemas"]["LastFailure"];
            /**
             * @description The state.
             * @enum {string}
             */
            state: "healthy" | "degraded" | "paused" | "probing" | "disabled";
            /** @description Until when nothing is sent. */
            until?: components["schemas"]["Time"];
        };
        /** @description The name of an endpoint, behind the name of its namespace and a slash unless that is default. */
        EndpointName: string;
        /** @description An endpoint is removed. */
        EndpointRemoved: {
            /** @description The name. */
            endpoint: string;
            /** @description true. */
            removed: boolean;
        };
        /** @description What came of a test. */
        EndpointTested: {
            /** @description The attempt. */
            attempt: components["schemas"]["Attempt"];
            /** @description The name. */
            endpoint: string;
            /** @description The revision of the endpoint. */
            revision: number;
        };
        /** @description A page of endpoints. */
        Endpoints: {
            /** @description The endpoints in order of their names. */
            endpoints: components["schemas"]["Endpoint"][];
            /** @description The cursor of the next page; null at the end. */
            next: string | null;
            /** @description How many are left out that cannot be read. */
            unreadable?: number;
        };
        /** @description What a commit did, as the data of an event. */
        Event: {
            /** @description When it happened. */
            at: components["schemas"]["Time"];
            /** @description The number of the attempt. */
            attempt?: number;
            /**
             * @description Why the timer was given up.
             * @enum {string}
             */
            dead_reason?: "exhausted" | "too_old" | "stopped" | "interrupted" | "missed" | "lease_lost";
            /** @description The status of the answer, or why there was none. */
            detail?: string;
            /** @description When the timer is due next. */
            due?: components["schemas"]["Time"];
            /** @description The endpoint that was changed. */
            endpoint?: string;
            /** @description The id of the timer. */
            id?: string;
            /** @description The key of the timer. */
            key?: string;
            /**
             * @description What happened.
             * @enum {string}
             */
            kind: "set" | "moved" | "fired" | "revived" | "removed" | "started" | "leased" | "extended" | "released" | "attempt_ended" | "held" | "missed" | "done" | "dead" | "queue_changed" | "endpoint_changed";
            /** @description How late the attempt was, in microseconds. */
            late_us?: number;
            /** @description When the lease ends. */
            leased_until?: components["schemas"]["Time"];
            /** @description The number of the event in the term. */
            number: number;
            /** @description The queue. */
            queue?: string;
            /** @description Whether the settings were removed. */
            removed?: boolean;
            /**
             * @description What came of the attempt.
             * @enum {string}
             */
            result?: "done" | "failed" | "stopped" | "interrupted" | "lost";
            /** @description The revision of the timer. */
            revision?: number;
            /** @description The shard that the event is of. */
            shard: number;
            /** @description The state of the timer behind the event. */
            state?: components["schemas"]["State"];
            /** @description The term of the owner of the shard. */
            term: number;
        };
        EventData: components["schemas"]["Event"] | components["schemas"]["Gap"];
        /** @description Each delay is a multiple of the last. */
        Exponential: {
            /** @description The longest delay. */
            cap: components["schemas"]["Duration"];
            /** @description How many times the last each next one is: 1, or 1.01 to 1,000. Default: 2. */
            factor?: number;
            /** @description The first delay. */
            first: components["schemas"]["Duration"];
        };
        /** @description The lease ends this long from now. */
        Extend: {
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /** @description For how long: 1 s to 12 h. */
            lease: components["schemas"]["Duration"];
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
            /** @description The token of the lease. */
            token: string;
        };
        /** @description The same for several leases. */
        Extends: {
            /** @description One for each lease. */
            items: components["schemas"]["Extend"][];
        };
        /** @description A field at fault. */
        FieldError: {
            /** @description What is wrong. */
            detail: string;
            /** @description The field, as a JSON pointer. */
            pointer: string;
        };
        /** @description Events of a shard that are not known any more, or never were. */
        Gap: {
            /** @description The shard. */
            shard: number;
        };
        /** @description The query of getDueStats. */
        GetDueStatsQuery: {
            /** @description The first moment of the first bucket. Default: now. */
            from?: components["schemas"]["Time"];
            /** @description The first moment behind the last bucket. Default: no end. */
            to?: components["schemas"]["Time"];
            /**
             * Format: step-text
             * @description How long a bucket is: a duration of whole seconds, from 1s to 366d. Default: 1s.
             */
            step?: string;
        };
        /** @description The query of getTimer. */
        GetTimerQuery: {
            /**
             * @description The timer has its body.
             * @enum {string}
             */
            body?: "text";
        };
        /** @description A timer that a drain has removed: the only copy. */
        HandedBack: {
            /** @description How many attempts were made. */
            attempt: number;
            /** @description The last attempts, oldest first. */
            attempts: components["schemas"]["Attempt"][];
            /** @description Of a run that a backfill has made. */
            backfill?: components["schemas"]["RunOf"];
            /** @description The value of a JSON body, else a text. */
            body?: unknown;
            /** @description The body if it is no UTF-8. */
            body_base64?: string;
            /** @description How many bytes the body has. */
            body_bytes: number;
            /** @description The content-type of the delivery, null without a body. */
            content_type: string | null;
            /** @description When the timer was set. */
            created: components["schemas"]["Time"];
            /** @description When the timer was given up. */
            dead_at?: components["schemas"]["Time"];
            /**
             * @description Why the timer was given up.
             * @enum {string}
             */
            dead_reason?: "exhausted" | "too_old" | "stopped" | "interrupted" | "missed" | "lease_lost";
            /** @description When the timer was done. */
            done_at?: components["schemas"]["Time"];
            /** @description When the timer is due. */
            due: components["schemas"]["Time"];
            /** @description Failures that count in the retry policy. */
            failures: number;
            /** @description Who says the rules that the timer has left open. */
            from?: components["schemas"]["Origins"];
            /** @description Why no attempt is made of a timer that is due. */
            held_by?: string;
            /** @description The id that every delivery of the timer carries. */
            id: string;
            /** @description Until when an ended timer is kept. */
            keep_until?: components["schemas"]["Time"];
            /** @description The key of the timer. */
            key: string;
            /** @description When the lease of a leased timer ends. */
            leased_until?: components["schemas"]["Time"];
            /** @description The rule for missed timers, unless it is fire. */
            missed?: components["schemas"]["Missed"];
            /** @description Of a pending timer: the attempts to come if each failed at once. */
            next_attempts?: components["schemas"]["NextAttempt"][];
            /** @description The priority, if the timer names one. */
            priority?: number;
            /** @description The queue of the timer. */
            queue: string;
            /** @description Of a recurring timer. */
            recurring?: components["schemas"]["Recurring"];
            /** @description The retry policy that holds now. */
            retry: components["schemas"]["Retry"];
            /** @description The revision of the timer. */
            revision: number;
            /** @description The serial key. */
            serial_key?: string;
            /** @description How much later than asked for the timer might be due. */
            spread?: components["schemas"]["DurationText"];
            /** @description How much of that was drawn. */
            spread_drawn?: components["schemas"]["DurationText"];
            /** @description The state. */
            state: components["schemas"]["State"];
            /** @description The tags. */
            tags?: components["schemas"]["Tag"][];
            /** @description Where the timer is delivered; null if what is stored is no request. */
            target: components["schemas"]["TimerTarget"] | null;
            /** @description The trace that the set came with. */
            trace_id?: string;
            /** @description Who has the lease, where that is known. */
            worker?: string;
        };
        /** @description Headers by name: at most 32, and 8 KiB in all. */
        Headers: {
            [key: string]: string;
        };
        /** @description How the service does. */
        Health: {
            /** @description What is degraded. */
            degraded?: components["schemas"]["Degraded"][];
            /** @description On a database: how durable a commit is. */
            durability?: string;
            /**
             * @description In one word.
             * @enum {string}
             */
            status: "ok" | "ready" | "started" | "degraded";
        };
        /** @description A job as it stands. */
        Job: {
            /**
             * @description What the job does to each timer.
             * @enum {string}
             */
            action: "remove" | "move" | "fire" | "revive";
            /** @description Whether the job was cancelled. */
            cancelled?: boolean;
            /** @description How many timers were changed. */
            done: number;
            /** @description Whether the job only counts. */
            dry_run: boolean;
            /** @description When the job ended. */
            ended?: components["schemas"]["Time"];
            /** @description Which timers it changes. */
            filter: components["schemas"]["JobFilterShown"];
            /** @description The number of the job. */
            id: number;
            /** @description How many timers the filter selects. */
            matched: number;
            /** @description Where it moves them. */
            move?: components["schemas"]["JobMove"];
            /** @description The queue. */
            queue: string;
            /** @description How many timers are changed each second at the most. */
            rate?: number;
            /** @description How many shards are not through. */
            shards_left: number;
            /** @description When the job was asked for. */
            since: components["schemas"]["Time"];
            /** @description How many timers were left alone. */
            skipped: number;
        };
        /** @description Which timers of the queue a job changes. */
        JobFilter: {
            /** @description Only timers due then or later. Default: any time. */
            due_after?: components["schemas"]["Time"];
            /** @description Only timers due earlier. Default: any time. */
            due_before?: components["schemas"]["Time"];
            /** @description What the key begins with. Default: any key. */
            prefix?: string;
            /** @description States that the action can change, each once. Default: all that the action can change. */
            states?: ("pending" | "done" | "dead")[];
            /** @description Tags, all of which the timer has. Default: any. */
            tags?: components["schemas"]["Tag"][];
        };
        /** @description Which timers a job changes. */
        JobFilterShown: {
            /** @description Only timers due then or later. */
            due_after?: components["schemas"]["Time"];
            /** @description Only timers due earlier. */
            due_before?: components["schemas"]["Time"];
            /** @description What the key begins with. */
            prefix?: string;
            /** @description The states. */
            states: ("pending" | "delivering" | "done" | "dead")[];
            /** @description Tags, all of which the timer has. */
            tags?: components["schemas"]["Tag"][];
        };
        /** @description Where a job moves timers. */
        JobMove: {
            /** @description A time. */
            at?: components["schemas"]["Time"];
            /** @description A signed duration from the present deadline. */
            by?: components["schemas"]["DurationText"];
            /** @description A duration from when the job comes to the timer. */
            in?: components["schemas"]["DurationText"];
        };
        /** @description All jobs that are shown. */
        Jobs: {
            /** @description In the order in which they were asked for. */
            jobs: components["schemas"]["Job"][];
        };
        /**
         * Format: timer-key
         * @description The key of a timer: 1 to 256 bytes of UTF-8 without control characters.
         */
        Key: string;
        /** @description The last failure of an endpoint. */
        LastFailure: {
            /** @description When it was. */
            at: components["schemas"]["Time"];
            /** @description What it was. */
            detail: string;
        };
        /** @description A timer that a worker has for a while. */
        Lease: {
            /** @description The number of the attempt. */
            attempt: number;
            /** @description The body. */
            body?: string;
            /** @description The body if it is no UTF-8. */
            body_base64?: string;
            /** @description The content-type of the body. */
            content_type?: string;
            /** @description When the attempt was due. */
            due: components["schemas"]["Time"];
            /** @description The headers that the timer was set with. */
            headers?: components["schemas"]["Headers"];
            /** @description For how long the attempt was held, in microseconds. */
            held_us: number;
            /** @description The id of the timer, or of its run. */
            id: string;
            /** @description The key of the timer. */
            key: string;
            /** @description How late the attempt is, in microseconds. */
            late_us: number;
            /** @description When the lease ends. */
            leased_until: components["schemas"]["Time"];
            /** @description The queue of the timer. */
            queue: string;
            /** @description Of a recurring timer: the number of the run. */
            run?: number;
            /** @description The token of the lease. */
            token: string;
            /** @description The trace of the set. */
            traceparent?: string;
        };
        /** @description What a worker asks of several queues. */
        LeaseOfQueues: {
            /** @description For how long: 1 s to 12 h. Default: the lease of the queue. */
            lease?: components["schemas"]["Duration"];
            /** @description How many leases. Default: 1. */
            max?: number;
            /** @description The queues, none of them twice. */
            queues: components["schemas"]["QueueName"][];
            /** @description How long to wait if none is due: at most 60 s. Default: 0. */
            wait?: components["schemas"]["Duration"];
            /** @description The name of the worker. Default: none. */
            worker?: string;
        };
        /** @description What a worker asks of one queue. */
        LeaseRequest: {
            /** @description For how long: 1 s to 12 h. Default: the lease of the queue. */
            lease?: components["schemas"]["Duration"];
            /** @description How many leases. Default: 1. */
            max?: number;
            /** @description How long to wait if none is due: at most 60 s. Default: 0. */
            wait?: components["schemas"]["Duration"];
            /** @description The name of the worker. Default: none. */
            worker?: string;
        };
        /** @description What became of one lease. */
        LeaseResult: {
            /** @description Why it was refused. */
            code?: string;
            /** @description The same in words. */
            detail?: string;
            /** @description When the timer is due next. */
            due?: components["schemas"]["Time"];
            /** @description The key of the timer. */
            key: string;
            /** @description When the lease ends, or that of another worker. */
            leased_until?: components["schemas"]["Time"];
            /** @description The queue of the timer. */
            queue: string;
            /** @description The state of the timer. */
            state?: components["schemas"]["State"];
            /** @description The status of this lease alone. */
            status: number;
            /** @description Who has the lease by now. */
            worker?: string;
        };
        /** @description What became of several leases. */
        LeaseResults: {
            /** @description In the order of the items. */
            results: components["schemas"]["LeaseResult"][];
        };
        /** @description What a worker got. */
        Leases: {
            /** @description The leases. */
            leases: components["schemas"]["Lease"][];
        };
        /** @description How many timers are left. */
        Left: {
            /** @description Timers that were given up. */
            dead: number;
            /** @description Timers that are delivered or leased. */
            delivering: number;
            /** @description Timers that wait. */
            pending: number;
        };
        /** @description Each delay is longer than the last by the same. */
        Linear: {
            /** @description The longest delay. Default: 365d. */
            cap?: components["schemas"]["Duration"];
            /** @description The first delay. */
            first: components["schemas"]["Duration"];
            /** @description How much longer each next one is. */
            increment: components["schemas"]["Duration"];
        };
        /** @description The query of listAllTimers. */
        ListAllTimersQuery: {
            /**
             * @description Only timers in this state.
             * @enum {string}
             */
            state?: "pending" | "delivering" | "done" | "dead";
            /** @description Only keys that begin with this. */
            prefix?: string;
            /** @description Only timers due then or later. */
            due_after?: components["schemas"]["Time"];
            /** @description Only timers due earlier. */
            due_before?: components["schemas"]["Time"];
            /** @description Only timers that have all of these tags, with commas between them. */
            tag?: string;
            /** @description How many a page has. Default: 100. */
            limit?: number;
            /**
             * Format: list-cursor
             * @description The cursor of the page before.
             */
            after?: string;
            /**
             * @description In which order. Default: due.
             * @enum {string}
             */
            order?: "due" | "created" | "trouble";
            /**
             * @description Each pending timer has its attempts to come.
             * @enum {string}
             */
            include?: "next_attempts";
            /**
             * @description Each timer has its body.
             * @enum {string}
             */
            bodies?: "text";
            /** @description Only queues whose names begin with this. */
            queue_prefix?: string;
        };
        /** @description The query of listAudit. */
        ListAuditQuery: {
            /** @description Only entries of then or later. */
            since?: components["schemas"]["Time"];
            /** @description Only entries of before then. */
            until?: components["schemas"]["Time"];
            /**
             * @description Which entries come first. Default: newest.
             * @enum {string}
             */
            order?: "newest" | "oldest";
            /** @description Only entries of the token with this id or name, or of this kind of caller. */
            who?: string;
            /** @description Only entries of this operation, by its operationId; of the pages, of `logIn`, `logOut` or `endSessions`. */
            operation?: string;
            /** @description How many a page has. Default: 100. */
            limit?: number;
            /**
             * Format: list-cursor
             * @description The cursor of the page before.
             */
            after?: string;
        };
        /** @description The query of listEndpoints. */
        ListEndpointsQuery: {
            /** @description How many a page has. Default: 100. */
            limit?: number;
            /** @description The next of the page before. */
            after?: components["schemas"]["EndpointName"];
        };
        /** @description The query of listQueues. */
        ListQueuesQuery: {
            /** @description How many a page has. Default: 1000. */
            limit?: number;
            /**
             * Format: list-cursor
             * @description The cursor of the page before.
             */
            after?: string;
            /** @description Only queues whose names begin with this. */
            prefix?: string;
            /**
             * @description Only queues with timers in this state.
             * @enum {string}
             */
            state?: "pending" | "delivering" | "done" | "dead";
        };
        /** @description The query of listRuns. */
        ListRunsQuery: {
            /** @description How many a page has. Default: 100. */
            limit?: number;
            /** @description The next of the page before. */
            after?: components["schemas"]["Time"];
        };
        /** @description The query of listTimers. */
        ListTimersQuery: {
            /**
             * @description Only timers in this state.
             * @enum {string}
             */
            state?: "pending" | "delivering" | "done" | "dead";
            /** @description Only keys that begin with this. */
            prefix?: string;
            /** @description Only timers due then or later. */
            due_after?: components["schemas"]["Time"];
            /** @description Only timers due earlier. */
            due_before?: components["schemas"]["Time"];
            /** @description Only timers that have all of these tags, with commas between them. */
            tag?: string;
            /** @description How many a page has. Default: 100. */
            limit?: number;
            /**
             * Format: list-cursor
             * @description The cursor of the page before.
             */
            after?: string;
            /**
             * @description In which order. Default: due.
             * @enum {string}
             */
            order?: "due" | "created" | "trouble";
            /**
             * @description Each pending timer has its attempts to come.
             * @enum {string}
             */
            include?: "next_attempts";
            /**
             * @description Each timer has its body.
             * @enum {string}
             */
            bodies?: "text";
        };
        /** @description A snapshot of the store. */
        MakeSnapshot: {
            /** @description What the snapshot is called. */
            name: string;
        };
        /** @description What becomes of a timer that is overdue before its first attempt. */
        Missed: ("fire" | "collapse") | components["schemas"]["SkipIfOlderThan"];
        /** @description Where a deadline is moved. */
        Move: components["schemas"]["MoveIn"] | components["schemas"]["MoveAt"] | components["schemas"]["MoveBy"];
        /**
         * MoveAt
         * @description Where a deadline is moved.
         */
        MoveAt: {
            /** @description A time. */
            at: components["schemas"]["Time"];
        };
        /**
         * MoveBy
         * @description Where a deadline is moved.
         */
        MoveBy: {
            /** @description A signed duration from the present deadline. */
            by: components["schemas"]["SignedDuration"];
        };
        /**
         * MoveIn
         * @description Where a deadline is moved.
         */
        MoveIn: {
            /** @description A duration from now. */
            in: components["schemas"]["Duration"];
        };
        /** @description How far the move of all timers has come. */
        MoveProgress: {
            /** @description Timers that were written. */
            copied: number;
            /** @description How long requests waited, in milliseconds. */
            held_ms: number | null;
            /** @description Deliveries that are made again. */
            interrupted: number;
            /** @description Timers that were changed since. */
            left: number;
            /** @description Why the move was given up, or what it waits for. */
            reason: string | null;
            /**
             * @description The state.
             * @enum {string}
             */
            state: "none" | "copying" | "following" | "holding" | "taking" | "moved" | "given_up";
            /** @description Where the timers go. */
            target: string | null;
            /** @description How long the move has taken, in milliseconds. */
            took_ms: number;
        };
        /** @description Where a shard goes. */
        MoveShard: {
            /** @description The name of a node, or null to leave the shard to the placement. */
            node: string | null;
        };
        /** @description The database of the cluster that all timers move to. */
        MoveToCluster: {
            /** @description As the option of serve of the same name. Default: false. */
            accept_loss?: boolean;
            /** @description The schema. Default: countwheel. */
            schema?: string;
            /**
             * Format: database-url
             * @description The URL of the database.
             */
            store: string;
            /** @description A file with what the certificate of the database comes from. */
            store_ca?: string;
        };
        /** @description What a move did. */
        Moved: {
            /** @description When the timer is due now. */
            due: components["schemas"]["Time"];
            /** @description When the timer was due. */
            old_due: components["schemas"]["Time"];
            /** @description The revision of the timer. */
            revision: number;
        };
        /** @description The attempt has failed. */
        Nack: {
            /** @description Whether no attempt follows. Default: false. */
            dead?: boolean;
            /** @description Why, kept with the attempt. Default: nacked. */
            detail?: string;
            /** @description When the next attempt comes: at most 365 days. Default: as the retry policy says. */
            in?: components["schemas"]["Duration"];
            /** @description The key of the timer. */
            key: components["schemas"]["Key"];
            /** @description The queue of the timer. */
            queue: components["schemas"]["QueueName"];
            /** @description The token of the lease. */
            token: string;
        };
        /** @description The same for several leases. */
        Nacks: {
            /** @description One for each lease. */
            items: components["schemas"]["Nack"][];
        };
        /** @description A namespace of queues. */
        Namespace: string;
        /** @description A namespace with its quotas. */
        NamespaceAnswer: {
            /** @description Whether single sets, moves and removals of its timers are in the audit log. */
            audit_timers: boolean;
            /** @description The name. */
            namespace: components["schemas"]["Namespace"];
            /** @description The quotas. */
            quotas: components["schemas"]["Quotas"];
            /** @description The revision of the quotas; null of default if none were put. */
            revision: number | null;
            /** @description What the namespace has. */
            usage?: components["schemas"]["NamespaceUsage"];
        };
        /** @description A namespace is removed. */
        NamespaceRemoved: {
            /** @description The name. */
            namespace: components["schemas"]["Namespace"];
            /** @description true. */
            removed: boolean;
        };
        /** @description What a namespace has. */
        NamespaceUsage: {
            /** @description With a quota of bytes: what was counted last, and what was set since. Absent until it was counted. */
            bytes?: number;
            /** @description Connections of callers to this node that count for the namespace. */
            connections: number;
            /** @description Endpoints. */
            endpoints: number;
            /** @description Queues with timers or settings. */
            queues: number;
            /** @description Timers in all states. */
            timers: number;
        };
        /** @description All namespaces. */
        Namespaces: {
            /** @description The namespaces in order of name. */
            namespaces: components["schemas"]["NamespaceAnswer"][];
        };
        /** @description When an endpoint is left alone, and for how long. */
        NewBreaker: {
            /** @description After so many failures in a row. Default: 10. */
            failures?: number;
            /** @description The first pause: 100 ms to 24 h. Default: 5s. */
            pause?: components["schemas"]["Duration"];
            /** @description The longest pause: 100 ms to 24 h. Default: 5m. */
            pause_max?: components["schemas"]["Duration"];
        };
        /** @description What the service shows in TLS. */
        NewClientCertificate: {
            /** @description Certificates in PEM. */
            certificate: string;
            /** @description The key in PEM. Default: the key stays. */
            key?: string;
        };
        /** @description What signs deliveries. An id without a secret keeps the secret of that id. */
        NewSecret: {
            /** @description By which the secret is known. */
            id: string;
            /**
             * Format: signing-secret
             * @description whsec_ and the base64 of 24 to 64 bytes.
             */
            secret?: string;
        };
        /** @description An attempt to come. */
        NextAttempt: {
            /** @description When the attempt would come. */
            at: components["schemas"]["Time"];
            /** @description The number of the attempt. */
            attempt: number;
        };
        /** @description A run to come. */
        NextRun: {
            /** @description When the run is due. */
            due: components["schemas"]["Time"];
            /** @description The nominal time in the zone of the expression. */
            local?: string;
            /** @description The nominal time. */
            nominal: components["schemas"]["Time"];
        };
        /** @description A page of runs to come. */
        NextRuns: {
            /** @description The after of the next page; null at the end. */
            next: components["schemas"]["Time"] | null;
            /** @description The runs, if each is made on time. */
            runs: components["schemas"]["NextRun"][];
        };
        /** @description A node of the cluster. */
        Node: {
            /** @description Where callers reach it. */
            api: string;
            /** @description Whether it is the node that answers. */
            here: boolean;
            /** @description Drawn at each start. */
            id: string;
            /** @description What is left of its lease, in milliseconds. */
            lease_left_ms: number;
            /** @description The name. */
            node: string;
            /** @description Where other nodes reach it. */
            peers: string | null;
            /** @description How many shards it has. */
            shards: number;
            /**
             * @description The state.
             * @enum {string}
             */
            state: "live" | "draining" | "over";
            /** @description The version of the program. */
            version: string;
            /** @description Its weight. */
            weight: number;
            /** @description The version of its time-zone rules. */
            zones: string;
        };
        /** @description How many nodes there are. */
        NodeCounts: {
            /** @description Nodes that give all their shards away. */
            draining: number;
            /** @description Nodes that live. */
            live: number;
            /** @description Nodes whose lease has ended. */
            over: number;
        };
        /** @description A node that is drained, or is so no more. */
        NodeMarked: {
            /** @description The name. */
            node: string;
            /** @description How many shards it still has. */
            shards: number;
            /** @description The state. */
            state: string;
        };
        /** @description All nodes that have joined and not left. */
        Nodes: {
            /** @description When the node looked that answers. */
            as_of: components["schemas"]["Time"];
            /** @description The nodes. */
            nodes: components["schemas"]["Node"][];
        };
        /** @description An object without fields. */
        Nothing: Record<string, never>;
        /** @description Who says the rules that the timer has left open. */
        Origins: {
            /**
             * @description Who says the rule for missed timers.
             * @enum {string}
             */
            missed?: "endpoint" | "queue" | "default";
            /**
             * @description Who says the rule for runs that overlap.
             * @enum {string}
             */
            overlap?: "endpoint" | "queue" | "default";
            /**
             * @description Who says the retry policy.
             * @enum {string}
             */
            retry?: "endpoint" | "queue" | "default";
            /**
             * @description Who says the timeout.
             * @enum {string}
             */
            timeout?: "endpoint" | "queue" | "default";
        };
        /** @description How many timers pend of which the time has come. */
        Overdue: {
            /** @description false if the count may be too low. */
            exact?: boolean;
            /** @description When the first of them was due. */
            oldest?: components["schemas"]["Time"];
            /** @description How many there are. */
            timers: number;
            /** @description They were due before this. */
            until: components["schemas"]["Time"] | null;
        };
        /** @description When a pause ends by itself. */
        Pause: {
            /** @description A time. */
            at?: components["schemas"]["Time"];
            /** @description A duration from now. */
            in?: components["schemas"]["Duration"];
        };
        /** @description How long the phases of an attempt took, in microseconds. */
        PhaseTimes: {
            /** @description The connection. */
            connect?: number;
            /** @description From the head of the request to the head of the answer. */
            first_byte: number;
            /** @description The look-up of the name. */
            resolve?: number;
            /** @description The handshake of TLS. */
            tls?: number;
        };
        /** @description A refusal (RFC 9457). It changes nothing, unless the code is unknown. */
        Problem: {
            /** @description The ceiling that forbids the request. */
            ceiling?: string | number;
            /** @description The code, for programs. */
            code: string;
            /** @description What is wrong, for people. */
            detail: string;
            /** @description The field at fault. */
            errors?: components["schemas"]["FieldError"][];
            /** @description Of an atomic batch: the operation that is refused. */
            item?: number;
            /** @description Of a lost lease: the key of the timer. */
            key?: string;
            /** @description When the lease of another worker ends. */
            leased_until?: components["schemas"]["Time"];
            /** @description The purge that runs. */
            purge?: components["schemas"]["Purge"];
            /** @description Of a lost lease: the queue of the timer. */
            queue?: string;
            /**
             * @description The quota that forbids the request.
             * @enum {string}
             */
            quota?: "timers" | "bytes" | "queues" | "endpoints" | "rate" | "connections";
            /** @description The current revision. */
            revision?: number;
            /** @description The state of the timer, which forbids the request. */
            state?: components["schemas"]["State"];
            /** @description The status of the answer. */
            status: number;
            /** @description The code in words. */
            title: string;
            /** @description /problems/ and the code: a page that tells more. */
            type: string;
            /** @description Who has the lease by now. */
            worker?: string;
        };
        /** @description What a code of a problem means. */
        ProblemType: {
            /** @description The code. */
            code: string;
            /** @description What to do about it. */
            do: string;
            /** @description The status of answers with it. */
            status: number;
            /** @description The code in words. */
            title: string;
            /** @description /problems/ and the code. */
            type: string;
            /** @description When it is answered. */
            when: string;
        };
        /** @description All codes of problems. */
        ProblemTypes: {
            /** @description In order of their statuses. */
            problems: components["schemas"]["ProblemType"][];
        };
        /** @description A purge as it stands. */
        Purge: {
            /** @description Only timers due then or later. */
            due_after?: components["schemas"]["Time"];
            /** @description Only timers due earlier. */
            due_before?: components["schemas"]["Time"];
            /** @description When the purge was through. */
            ended?: components["schemas"]["Time"];
            /** @description The number of the purge. */
            id: number;
            /** @description What the key begins with. */
            prefix?: string;
            /** @description How many timers were removed. */
            removed: number;
            /** @description How many shards are not through. */
            shards_left: number;
            /** @description When the purge was asked for. */
            since: components["schemas"]["Time"];
            /** @description The states that are removed. */
            states: ("pending" | "delivering" | "done" | "dead")[];
        };
        /** @description What a purge removes. */
        PurgeFilter: {
            /** @description Only timers due then or later. Default: any time. */
            due_after?: components["schemas"]["Time"];
            /** @description Only timers due earlier. Default: any time. */
            due_before?: components["schemas"]["Time"];
            /** @description What the key begins with. Default: any key. */
            prefix?: string;
            /** @description States, each once. Default: all three. */
            states?: ("pending" | "done" | "dead")[];
        };
        /** @description An endpoint: a place for deliveries that has a name. */
        PutEndpoint: {
            /** @description The only places where deliveries go. Default: wherever the service allows. */
            allow?: string[];
            /** @description The endpoint is disabled once every attempt failed for so long: 1 min to 30 d. Default: never. */
            auto_disable?: components["schemas"]["Duration"];
            /** @description The endpoint is left alone for a while once attempts fail. Default: never. */
            breaker?: components["schemas"]["NewBreaker"];
            /** @description Certificates in PEM that the endpoint's comes from. Default: those of the service. */
            ca?: string;
            /** @description What the service shows in TLS. Default: none. */
            client_certificate?: components["schemas"]["NewClientCertificate"];
            /** @description How many attempts may run at a time. Default: the share. */
            concurrency?: number;
            /** @description Whether no attempt starts. Default: false. */
            disabled?: boolean;
            /**
             * Format: proxy-url
             * @description Deliveries leave through this proxy. Default: that of the service.
             */
            egress_proxy?: string;
            /** @description Sent with each delivery. Default: none. */
            headers?: components["schemas"]["Headers"];
            /**
             * @description Whether HTTP/2 is offered. Default: auto.
             * @enum {string}
             */
            http?: "auto" | "1.1";
            /** @description How many attempts may start. Default: no limit. */
            rate?: components["schemas"]["Rate"];
            /** @description The policy of timers that name none. Default: that of the queue. */
            retry?: components["schemas"]["Retry"];
            /** @description What signs deliveries. Default: none. */
            secrets?: (string | components["schemas"]["NewSecret"])[];
            /** @description What statuses of answers mean. Default: those of the queue. */
            statuses?: components["schemas"]["Statuses"];
            /** @description One deadline for a whole attempt: 100 ms to 30 min. Default: that of the queue, else 15 s. */
            timeout?: components["schemas"]["Duration"];
            /**
             * Format: target-url
             * @description The URL, http or https.
             */
            url: string;
        };
        /** @description A namespace. */
        PutNamespace: {
            /** @description Whether single sets, moves and removals of its timers have entries in the audit log, as others have. Default: false, unless the service notes all of them. */
            audit_timers?: boolean;
            /** @description Its quotas. Default: none. */
            quotas?: components["schemas"]["Quotas"];
        };
        /** @description The settings of a queue, for timers that do not say it themselves. */
        PutQueue: {
            /** @description Makes deliveries events. Default: none. */
            cloudevents?: components["schemas"]["CloudEvents"];
            /** @description How many attempts may run at a time. Default: no limit. */
            concurrency?: number;
            /** @description Where timers without a place go. Default: none. */
            endpoint?: components["schemas"]["EndpointName"];
            /** @description With mode pull, how long a worker has a timer: 1 s to 12 h. Default: 30s. */
            lease?: components["schemas"]["Duration"];
            /** @description The rule for missed timers. Default: fire. */
            missed?: components["schemas"]["Missed"];
            /**
             * @description Whether timers are delivered, or fetched by workers. Default: push.
             * @enum {string}
             */
            mode?: "push" | "pull";
            /**
             * @description The rule for runs that overlap. Default: skip.
             * @enum {string}
             */
            overlap?: "skip" | "queue";
            /** @description How many bytes the body of a timer may have. Default: what has room in a request of 1 MiB. */
            payload_limit?: number;
            /**
             * @description Whether all timers of the queue are in one shard. Default: spread.
             * @enum {string}
             */
            placement?: "spread" | "one";
            /** @description The priority of timers that name none. Default: 0. */
            priority?: number;
            /** @description How many attempts may start. Default: no limit. */
            rate?: components["schemas"]["Rate"];
            /** @description How long timers are kept once they have ended. */
            retention?: components["schemas"]["Retention"];
            /** @description The retry policy. Default: 20 attempts. */
            retry?: components["schemas"]["Retry"];
            /** @description Whether timers may have a serial_key. Default: false. */
            serial?: boolean;
            /** @description What statuses of answers mean. Default: 2xx is done, 410 is stop, any other is retry. */
            statuses?: components["schemas"]["Statuses"];
            /** @description One deadline for a whole attempt: 100 ms to 30 min. Default: 15 s. */
            timeout?: components["schemas"]["Duration"];
        };
        /** @description A queue with its counts and settings. */
        Queue: {
            /** @description Makes deliveries events. */
            cloudevents?: components["schemas"]["CloudEvents"];
            /** @description How many attempts may run at a time. */
            concurrency?: number;
            /** @description Timers that were given up. */
            dead: number;
            /** @description Timers that are delivered or leased. */
            delivering: number;
            /** @description Timers that are done and kept. */
            done: number;
            /** @description The pause or drain of the queue. */
            drain?: components["schemas"]["DrainState"];
            /** @description Where timers without a place go. */
            endpoint?: string;
            /** @description How long a worker has a timer. */
            lease?: components["schemas"]["DurationText"];
            /** @description The rule for missed timers. */
            missed?: components["schemas"]["Missed"];
            /**
             * @description The mode, unless it is push.
             * @enum {string}
             */
            mode?: "push" | "pull";
            /**
             * @description The rule for runs that overlap.
             * @enum {string}
             */
            overlap?: "skip" | "queue";
            /** @description How many bytes the body of a timer may have. */
            payload_limit?: number;
            /** @description Timers that wait. */
            pending: number;
            /**
             * @description The placement, unless it is spread.
             * @enum {string}
             */
            placement?: "spread" | "one";
            /** @description The priority of timers that name none. */
            priority?: number;
            /** @description The purge of the queue. */
            purge?: components["schemas"]["Purge"];
            /** @description The name of the queue. */
            queue: string;
            /** @description How many attempts may start. */
            rate?: components["schemas"]["RateLimit"];
            /** @description How long timers are kept once they have ended. */
            retention?: components["schemas"]["RetentionTimes"];
            /** @description The retry policy. */
            retry?: components["schemas"]["Retry"];
            /** @description The revision of the settings; null without any. */
            revision: number | null;
            /** @description Whether timers may have a serial_key. */
            serial?: boolean;
            /** @description What statuses of answers mean. */
            statuses?: components["schemas"]["Statuses"];
            /** @description One deadline for a whole attempt. */
            timeout?: components["schemas"]["DurationText"];
        };
        /** @description How many timers a queue has, and whether it is drained. */
        QueueCounts: {
            /** @description Timers that were given up. */
            dead: number;
            /** @description Timers that are delivered or leased. */
            delivering: number;
            /** @description Timers that are done and kept. */
            done: number;
            /** @description The pause or drain of the queue. */
            drain?: components["schemas"]["DrainState"];
            /** @description Timers that wait. */
            pending: number;
            /** @description The purge of the queue. */
            purge?: components["schemas"]["Purge"];
            /** @description The name of the queue. */
            queue: string;
        };
        /** @description The name of a queue, behind the name of its namespace and a slash unless that is default. */
        QueueName: string;
        /** @description The purge of a queue. */
        QueuePurge: {
            /** @description The purge. */
            purge: components["schemas"]["Purge"];
            /** @description The queue. */
            queue: string;
        };
        /** @description The settings of a queue are removed. */
        QueueRemoved: {
            /** @description The queue. */
            queue: string;
            /** @description true. */
            removed: boolean;
        };
        /** @description All queues. */
        Queues: {
            /** @description The pause or drain of all queues. */
            drain?: components["schemas"]["DrainState"];
            /** @description false if a count may be too low. */
            exact?: boolean;
            /** @description The cursor of the next page; null at the end. */
            next: string | null;
            /** @description The queues in order of their names. */
            queues: components["schemas"]["QueueCounts"][];
        };
        /** @description How much a namespace may have. Without a quota it may have as much as there is. */
        Quotas: {
            /** @description Bytes of the keys of timers, and of what is stored of their bodies, targets, headers and tags. */
            bytes?: number;
            /** @description Connections of callers. */
            connections?: number;
            /** @description Endpoints. */
            endpoints?: number;
            /** @description Queues with timers or settings. */
            queues?: number;
            /** @description Requests under /v1, and lines of batches of its tokens. */
            rate?: components["schemas"]["Rate"];
            /** @description Timers in all states. */
            timers?: number;
        };
        /** @description How many attempts may start. */
        Rate: {
            /** @description At once. Default: per_second, rounded up. */
            burst?: number;
            /** @description A second, in the long run. */
            per_second: number;
        };
        /** @description How many attempts may start. */
        RateLimit: {
            /** @description At once. */
            burst: number;
            /** @description A second, in the long run. */
            per_second: number;
        };
        /** @description Whether the shards are moved, or only told. */
        Rebalance: {
            /** @description Nothing is changed. Default: false. */
            dry_run?: boolean;
        };
        /** @description Where shards go. */
        Rebalanced: {
            /** @description Whether nothing was changed. */
            dry_run: boolean;
            /** @description The moves. */
            moves: components["schemas"]["ShardMove"][];
        };
        /** @description The schedule of a recurring timer, and its position. */
        Recurring: {
            /** @description The bounds of what the receiver may ask for. */
            adaptive?: components["schemas"]["AdaptiveBounds"];
            /** @description A point of the grid of a fixed rate. */
            at?: components["schemas"]["Time"];
            /** @description The expression. */
            cron?: string;
            /** @description How many runs were given up. */
            dead_runs: number;
            /** @description The interval of a fixed rate. */
            every?: components["schemas"]["DurationText"];
            /** @description The delay after each run. */
            every_after?: components["schemas"]["DurationText"];
            /** @description How far each run is spread. */
            jitter?: components["schemas"]["DurationText"];
            /** @description How many runs were missed. */
            missed_runs: number;
            /** @description The nominal times of the runs after it. */
            next_runs: components["schemas"]["Time"][];
            /** @description The nominal time of that run. */
            nominal: components["schemas"]["Time"];
            /**
             * @description The rule for runs that overlap, as it holds now.
             * @enum {string}
             */
            overlap: "skip" | "queue";
            /** @description How many runs were skipped as overlapped. */
            overlapped_runs: number;
            /** @description How many runs are made in all. */
            repeats?: number;
            /** @description The number of the run that is next, under way or was the last. */
            run: number;
            /** @description No run has a nominal time after this. */
            until?: components["schemas"]["Time"];
            /** @description The time zone of the expression. */
            zone?: string;
        };
        /** @description The query of removeTimer. */
        RemoveTimerQuery: {
            /**
             * @description Removes the timer only in this state.
             * @enum {string}
             */
            only?: "pending";
        };
        /** @description What a removed timer was doing. */
        Removed: {
            /** @description Of a timer in delivery: the number of the attempt that may still arrive. */
            attempt?: number;
            /** @description Of a pending timer: when it was due. */
            due?: components["schemas"]["Time"];
            /**
             * @description What the timer was doing.
             * @enum {string}
             */
            was: "pending" | "delivering" | "leased" | "dead" | "unreadable";
        };
        /** @description How a timer is sent again. */
        Resend: {
            /** @description Stands in place of the whole stored target. Default: the stored one. */
            target?: components["schemas"]["Target"];
        };
        /** @description A queue, or all of them, that goes on. */
        Resumed: {
            /** @description How many timers there are. */
            left: components["schemas"]["Left"];
            /** @description The queue; null for all. */
            queue: string | null;
            /** @description The pause or drain that ended; null if there was none. */
            was: components["schemas"]["DrainState"] | null;
        };
        /** @description How long timers are kept once they have ended. */
        Retention: {
            /** @description Of dead timers, at most 3,650 days; null for good. Default: for good. */
            dead?: components["schemas"]["Duration"] | null;
            /** @description Of timers that are done. Default: --keep-done. */
            done?: components["schemas"]["Duration"];
        };
        /** @description How long timers are kept once they have ended. */
        RetentionTimes: {
            /** @description Of dead timers; null for good. */
            dead: components["schemas"]["DurationText"] | null;
            /** @description Of timers that are done. */
            done?: components["schemas"]["DurationText"];
        };
        /** @description A retry policy: when attempts come that follow a failure. */
        Retry: components["schemas"]["RetrySchedule"] | components["schemas"]["RetryPreset"] | components["schemas"]["RetryFixed"] | components["schemas"]["RetryLinear"] | components["schemas"]["RetryExponential"];
        /**
         * RetryExponential
         * @description A retry policy: when attempts come that follow a failure.
         */
        RetryExponential: {
            /** @description Delays that multiply. */
            exponential: components["schemas"]["Exponential"];
            /**
             * @description How much of each delay is left to chance. Default: none.
             * @enum {string}
             */
            jitter?: "none" | "full" | "equal";
            /** @description No retry comes later than this after the first deadline. */
            max_age?: components["schemas"]["Duration"];
            /** @description How many attempts are made at the most, the first included. */
            max_attempts?: number;
        };
        /**
         * RetryFixed
         * @description A retry policy: when attempts come that follow a failure.
         */
        RetryFixed: {
            /** @description The same delay each time. */
            fixed: components["schemas"]["Duration"];
            /**
             * @description How much of each delay is left to chance. Default: none.
             * @enum {string}
             */
            jitter?: "none" | "full" | "equal";
            /** @description No retry comes later than this after the first deadline. */
            max_age?: components["schemas"]["Duration"];
            /** @description How many attempts are made at the most, the first included. */
            max_attempts?: number;
        };
        /**
         * RetryLinear
         * @description A retry policy: when attempts come that follow a failure.
         */
        RetryLinear: {
            /**
             * @description How much of each delay is left to chance. Default: none.
             * @enum {string}
             */
            jitter?: "none" | "full" | "equal";
            /** @description Delays that grow evenly. */
            linear: components["schemas"]["Linear"];
            /** @description No retry comes later than this after the first deadline. */
            max_age?: components["schemas"]["Duration"];
            /** @description How many attempts are made at the most, the first included. */
            max_attempts?: number;
        };
        /**
         * RetryPreset
         * @description A retry policy: when attempts come that follow a failure.
         */
        RetryPreset: {
            /**
             * @description How much of each delay is left to chance. Default: none.
             * @enum {string}
             */
            jitter?: "none" | "full" | "equal";
            /** @description No retry comes later than this after the first deadline. */
            max_age?: components["schemas"]["Duration"];
            /** @description How many attempts are made at the most, the first included. */
            max_attempts?: number;
            /**
             * @description The schedule of a known system.
             * @enum {string}
             */
            preset: "wechat" | "dubbo" | "dubbo-registry" | "eureka" | "go-zero";
        };
        /**
         * RetrySchedule
         * @description A retry policy: when attempts come that follow a failure.
         */
        RetrySchedule: {
            /**
             * @description How much of each delay is left to chance. Default: none.
             * @enum {string}
             */
            jitter?: "none" | "full" | "equal";
            /** @description No retry comes later than this after the first deadline. */
            max_age?: components["schemas"]["Duration"];
            /** @description How many attempts are made at the most, the first included. */
            max_attempts?: number;
            /** @description These delays. */
            schedule: components["schemas"]["Duration"][];
        };
        /** @description When a revived timer is due. */
        Revive: components["schemas"]["ReviveIn"] | components["schemas"]["ReviveAt"];
        /**
         * ReviveAt
         * @description When a revived timer is due.
         */
        ReviveAt: {
            /** @description A time. */
            at: components["schemas"]["Time"];
        };
        /**
         * ReviveIn
         * @description When a revived timer is due.
         */
        ReviveIn: {
            /** @description A duration from now. */
            in: components["schemas"]["Duration"];
        };
        /** @description A token that gets another secret. */
        RotateToken: {
            /** @description For how long the secret before counts still: up to 30 days. Default: 0. */
            overlap?: components["schemas"]["Duration"];
        };
        /** @description The query of runBatch. */
        RunBatchQuery: {
            /** @description Whether the batch is done whole or not at all. Default: false. */
            atomic?: boolean;
        };
        /** @description Of which run of which timer a timer is. */
        RunOf: {
            /** @description The nominal time of the run. */
            nominal: components["schemas"]["Time"];
            /** @description The key of the recurring timer. */
            of: string;
        };
        /** @description A secret, of which nothing secret is shown. */
        Secret: {
            /** @description When the secret was put. */
            created: components["schemas"]["Time"];
            /** @description By which the secret is known. */
            id: string;
        };
        /** @description A timer to be set. */
        SetTimer: {
            /** @description The receiver may say when the next run is, within these bounds. */
            adaptive?: components["schemas"]["Adaptive"];
            /** @description A time, at most 36,525 days ahead. */
            at?: components["schemas"]["Time"];
            /** @description Any value, delivered as JSON byte for byte; with content_type, a text. Default: empty. */
            body?: unknown;
            /** @description In place of body: bytes, as base64. */
            body_base64?: string;
            /**
             * Format: media-type
             * @description The content-type of the delivery; body is a text then. Default: application/json for a body, application/octet-stream for a body_base64.
             */
            content_type?: string;
            /**
             * Format: cron-expression
             * @description The timer recurs at the times that this expression names.
             */
            cron?: string;
            /** @description The timer recurs at a fixed rate. */
            every?: components["schemas"]["Duration"];
            /** @description The timer recurs, this long after the end of each run. */
            every_after?: components["schemas"]["Duration"];
            /** @description A duration from now, at most 36,525 days. */
            in?: components["schemas"]["Duration"];
            /** @description Each run is due between its nominal time and this much later. Default: none. */
            jitter?: components["schemas"]["Duration"];
            /** @description The rule for a timer that is overdue. Default: that of the queue, else fire. */
            missed?: components["schemas"]["Missed"];
            /**
             * @description The rule for a run that comes due before the run before it has ended. Default: that of the queue, else skip.
             * @enum {string}
             */
            overlap?: "skip" | "queue";
            /** @description 0 is the most urgent of those that wait for one place. Default: that of the queue. */
            priority?: number;
            /** @description How many runs are made in all. Default: no end. */
            repeats?: number;
            /** @description The retry policy. Default: that of the endpoint, else that of the queue, else 20 attempts. */
            retry?: components["schemas"]["Retry"];
            /** @description Of the timers with one serial key, one is delivered at a time. */
            serial_key?: components["schemas"]["Key"];
            /** @description The timer is due at a time drawn evenly up to this much later, at most a day. */
            spread?: components["schemas"]["Duration"];
            /** @description Texts by which lists and jobs find the timer, none of them twice. Default: none. */
            tags?: components["schemas"]["Tag"][];
            /** @description Where the timer is delivered; required unless the queue has an endpoint or is pulled. Default: the endpoint of the queue. */
            target?: components["schemas"]["Target"];
            /** @description No run has a nominal time after this. Default: no end. */
            until?: components["schemas"]["Time"];
            /**
             * Format: time-zone
             * @description The time zone of cron, an IANA name. Default: UTC.
             */
            zone?: string;
        };
        /** @description A shard of the cluster. */
        Shard: {
            /** @description Commits since the node took it. */
            commits?: number;
            /** @description The number under which it was taken last. */
            fence: number;
            /** @description Attempts that run. */
            in_flight?: number;
            /** @description An upper bound of the lateness, in microseconds. */
            late_p99_us?: number;
            /** @description Timers that are overdue. */
            overdue?: number;
            /** @description The node that has it. */
            owner: string | null;
            /** @description Timers that wait or are delivered. */
            pending: number | null;
            /** @description The number of the shard. */
            shard: number;
            /** @description When it was taken last. */
            since: components["schemas"]["Time"];
            /**
             * @description The state.
             * @enum {string}
             */
            state: "owned" | "taking" | "handing_over" | "overdue" | "free";
            /** @description The node that a move has asked for. */
            wanted: string | null;
        };
        /** @description How many shards there are. */
        ShardCounts: {
            /** @description Shards that nobody has. */
            free: number;
            /** @description Shards that go to another node. */
            handing_over: number;
            /** @description Shards whose owner is gone. */
            overdue: number;
            /** @description Shards whose owner lives. */
            owned: number;
            /** @description Shards that their node has yet to load. */
            taking: number;
        };
        /** @description A move of one shard. */
        ShardMove: {
            /** @description The node that has it. */
            from: string | null;
            /** @description The number of the shard. */
            shard: number;
            /** @description The node that gets it. */
            to: string;
        };
        /** @description Where a shard goes. */
        ShardMoved: {
            /** @description The node that has it. */
            owner: string | null;
            /** @description The number of the shard. */
            shard: number;
            /** @description The node that gets it. */
            wanted: string | null;
        };
        /** @description All shards. */
        Shards: {
            /** @description When the node looked that answers. */
            as_of: components["schemas"]["Time"];
            /** @description The shards. */
            shards: components["schemas"]["Shard"][];
        };
        /** @description A duration with or without a minus before it. */
        SignedDuration: number | string;
        /** @description A retry policy or a schedule to be gone through. */
        Simulate: {
            /** @description A time, at most 36,525 days ahead. */
            at?: components["schemas"]["Time"];
            /**
             * Format: cron-expression
             * @description The timer recurs at the times that this expression names.
             */
            cron?: string;
            /** @description The endpoint that the timer would go to. Default: that of the queue. */
            endpoint?: components["schemas"]["EndpointName"];
            /** @description The timer recurs at a fixed rate. */
            every?: components["schemas"]["Duration"];
            /** @description The timer recurs, this long after the end of each run. */
            every_after?: components["schemas"]["Duration"];
            /** @description A duration from now, at most 36,525 days. */
            in?: components["schemas"]["Duration"];
            /** @description Each run is due between its nominal time and this much later. Default: none. */
            jitter?: components["schemas"]["Duration"];
            /** @description How many attempts or runs are shown at the most. Default: 100. */
            limit?: number;
            /** @description The rule for a timer that is overdue. Default: that of the queue, else fire. */
            missed?: components["schemas"]["Missed"];
            /**
             * @description The rule for a run that comes due before the run before it has ended. Default: that of the queue, else skip.
             * @enum {string}
             */
            overlap?: "skip" | "queue";
            /** @description The queue that the timer would be in. */
            queue?: components["schemas"]["QueueName"];
            /** @description How many runs are made in all. Default: no end. */
            repeats?: number;
            /** @description The policy whose attempts are asked for. */
            retry?: components["schemas"]["Retry"];
            /** @description When the timer is set. Default: now. */
            start?: components["schemas"]["Time"];
            /** @description No run has a nominal time after this. Default: no end. */
            until?: components["schemas"]["Time"];
            /**
             * Format: time-zone
             * @description The time zone of cron, an IANA name. Default: UTC.
             */
            zone?: string;
        };
        /** @description An attempt of a retry policy. */
        SimulatedAttempt: {
            /** @description The time since the first attempt, in milliseconds. */
            after_ms: number;
            /** @description When it starts with jitter taking nothing off. */
            at: components["schemas"]["Time"];
            /** @description The number of the attempt. */
            attempt: number;
            /** @description The time since the attempt before, in milliseconds. */
            delay_ms: number;
            /** @description When it starts with jitter taking off all it can. */
            earliest: components["schemas"]["Time"];
        };
        /** @description The attempts of a retry policy. */
        SimulatedAttempts: {
            /** @description The attempts. */
            attempts: components["schemas"]["SimulatedAttempt"][];
            /** @description What becomes of the timer; null if it was cut. */
            then: "dead" | null;
            /** @description The time from the first to the last, in milliseconds. */
            total_ms: number;
            /** @description Whether more would follow. */
            truncated: boolean;
        };
        /** @description A run of a schedule. */
        SimulatedRun: {
            /** @description Its nominal time. */
            at: components["schemas"]["Time"];
            /** @description The end of its jitter. */
            latest: components["schemas"]["Time"];
            /** @description The time in the zone of the expression. */
            local?: string;
            /** @description The number of the run. */
            run: number;
        };
        /** @description The runs of a schedule. */
        SimulatedRuns: {
            /** @description The runs. */
            runs: components["schemas"]["SimulatedRun"][];
            /** @description What becomes of the timer; null if it was cut. */
            then: "done" | null;
            /** @description Whether more would follow. */
            truncated: boolean;
        };
        /** @description The attempts of a timer of a queue or to an endpoint, and the rules that hold there. */
        SimulatedThere: {
            /** @description The attempts. */
            attempts: components["schemas"]["SimulatedAttempt"][];
            /** @description Who says each rule. */
            from: components["schemas"]["Origins"];
            /** @description The rule for missed timers. */
            missed: components["schemas"]["Missed"];
            /**
             * @description The rule for runs that overlap.
             * @enum {string}
             */
            overlap?: "skip" | "queue";
            /** @description The retry policy. */
            retry: components["schemas"]["Retry"];
            /** @description What becomes of the timer; null if it was cut. */
            then: "dead" | null;
            /** @description The deadline of an attempt. */
            timeout: components["schemas"]["DurationText"] | null;
            /** @description The time from the first to the last, in milliseconds. */
            total_ms: number;
            /** @description Whether more would follow. */
            truncated: boolean;
        };
        /** @description The timer is skipped if it is more overdue than this. */
        SkipIfOlderThan: {
            /** @description How overdue the timer may be. */
            skip_if_older_than: components["schemas"]["Duration"];
        };
        /** @description A snapshot that was made. */
        Snapshot: {
            /** @description How many bytes they have. */
            bytes: number;
            /** @description The last commit in it. */
            commit: number;
            /** @description How many of them were copied. */
            copied_bytes: number;
            /** @description How many files it has. */
            files: number;
            /** @description What it is called. */
            name: string;
        };
        /**
         * @description The state of a timer. A timer that a worker has is leased.
         * @enum {string}
         */
        State: "pending" | "delivering" | "leased" | "done" | "dead";
        /** @description The figures of all nodes. */
        Stats: {
            /** @description When they were taken. */
            as_of: components["schemas"]["Time"];
            /** @description How far the clocks are apart. */
            delays_drift_micros: components["schemas"]["DelaysDrift"];
            /** @description Within the next minute, hour, day and year, and in all. */
            due: components["schemas"]["DueBucket"][];
            /** @description false if a figure may be wrong. */
            exact?: boolean;
            /** @description Attempts that run. */
            in_flight: number;
            /** @description Timers that workers have. */
            leased: number;
            /** @description How many nodes the figures are of. */
            nodes: number;
            /** @description How many of them are overdue. */
            overdue: components["schemas"]["Overdue"] | null;
            /** @description What was done lately. */
            recent: components["schemas"]["DoneRecently"] | null;
            /** @description What was done since the processes started. */
            since_start: components["schemas"]["DoneSoFar"];
            /** @description How many timers there are. */
            timers: components["schemas"]["TimerCounts"];
            /** @description Timers that wait for a place. */
            waiting_for_limits: number;
        };
        /** @description What statuses of answers mean, by status (200 to 599) or class (2xx, 3xx, 4xx, 5xx). */
        Statuses: {
            [key: string]: "done" | "retry" | "stop";
        };
        /** @description The query of streamEvents. */
        StreamEventsQuery: {
            /** @description Only of queues of this namespace. */
            namespace?: components["schemas"]["Namespace"];
            /** @description Only of this queue. */
            queue?: components["schemas"]["QueueName"];
            /** @description Only of keys that begin with this. */
            prefix?: string;
            /**
             * Format: event-kinds
             * @description Only these kinds, with commas between them.
             */
            kinds?: string;
            /**
             * Format: event-id
             * @description The id of the last event that the caller has.
             */
            after?: string;
        };
        /** @description A short text by which lists and jobs find timers. */
        Tag: string;
        /** @description Where a timer is delivered, and how. */
        Target: {
            /** @description In place of url: the name of an endpoint, or null for that of the queue. */
            endpoint?: components["schemas"]["EndpointName"] | null;
            /** @description Sent with each delivery. Default: none. */
            headers?: components["schemas"]["Headers"];
            /**
             * @description The method of the request. Default: POST.
             * @enum {string}
             */
            method?: "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS";
            /**
             * Format: target-path
             * @description What follows the URL of the endpoint.
             */
            path?: string;
            /** @description One deadline for a whole attempt: 100 ms to 30 min. Default: that of the endpoint, else that of the queue, else 15 s. */
            timeout?: components["schemas"]["Duration"];
            /**
             * Format: target-url
             * @description The URL, http or https, without user and password.
             */
            url?: string;
        };
        /** @description What a target answered. */
        TargetAnswer: {
            /** @description The first 1 KiB of the body. */
            body?: string;
            /** @description The same if the body is no UTF-8. */
            body_base64?: string;
            /** @description How much of the body was read. */
            body_bytes: number;
            /** @description Headers of the answer that did not count. */
            ignored?: string[];
            /** @description The status. */
            status: number;
            /** @description How long the phases took, in microseconds. */
            times_us: components["schemas"]["PhaseTimes"];
            /** @description Whether the body is longer than what is shown. */
            truncated: boolean;
        };
        /** @description The one request of a test. */
        TestEndpoint: {
            /** @description Sent as JSON. Default: empty. */
            body?: unknown;
            /** @description Headers of the request. Default: none. */
            headers?: components["schemas"]["Headers"];
            /**
             * @description The method. Default: POST.
             * @enum {string}
             */
            method?: "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS";
            /**
             * Format: target-path
             * @description What follows the URL of the endpoint. Default: nothing.
             */
            path?: string;
        };
        /**
         * Format: date-time
         * @description A time as RFC 3339 writes it, with an offset. Answers have UTC with six digits of a second.
         */
        Time: string;
        /** @description A timer as it stands. */
        Timer: {
            /** @description How many attempts were made. */
            attempt: number;
            /** @description The last attempts, oldest first. */
            attempts: components["schemas"]["Attempt"][];
            /** @description Of a run that a backfill has made. */
            backfill?: components["schemas"]["RunOf"];
            /** @description With bodies=text: exactly what is delivered. */
            body?: string;
            /** @description The same if the body is no UTF-8. */
            body_base64?: string;
            /** @description How many bytes the body has. */
            body_bytes: number;
            /** @description The content-type of the delivery, null without a body. */
            content_type: string | null;
            /** @description When the timer was set. */
            created: components["schemas"]["Time"];
            /** @description When the timer was given up. */
            dead_at?: components["schemas"]["Time"];
            /**
             * @description Why the timer was given up.
             * @enum {string}
             */
            dead_reason?: "exhausted" | "too_old" | "stopped" | "interrupted" | "missed" | "lease_lost";
            /** @description When the timer was done. */
            done_at?: components["schemas"]["Time"];
            /** @description When the timer is due. */
            due: components["schemas"]["Time"];
            /** @description Failures that count in the retry policy. */
            failures: number;
            /** @description Who says the rules that the timer has left open. */
            from?: components["schemas"]["Origins"];
            /** @description Why no attempt is made of a timer that is due. */
            held_by?: string;
            /** @description The id that every delivery of the timer carries. */
            id: string;
            /** @description Until when an ended timer is kept. */
            keep_until?: components["schemas"]["Time"];
            /** @description The key of the timer. */
            key: string;
            /** @description When the lease of a leased timer ends. */
            leased_until?: components["schemas"]["Time"];
            /** @description The rule for missed timers, unless it is fire. */
            missed?: components["schemas"]["Missed"];
            /** @description Of a pending timer: the attempts to come if each failed at once. */
            next_attempts?: components["schemas"]["NextAttempt"][];
            /** @description The priority, if the timer names one. */
            priority?: number;
            /** @description The queue of the timer. */
            queue: string;
            /** @description Of a recurring timer. */
            recurring?: components["schemas"]["Recurring"];
            /** @description The retry policy that holds now. */
            retry: components["schemas"]["Retry"];
            /** @description The revision of the timer. */
            revision: number;
            /** @description The serial key. */
            serial_key?: string;
            /** @description How much later than asked for the timer might be due. */
            spread?: components["schemas"]["DurationText"];
            /** @description How much of that was drawn. */
            spread_drawn?: components["schemas"]["DurationText"];
            /** @description The state. */
            state: components["schemas"]["State"];
            /** @description The tags. */
            tags?: components["schemas"]["Tag"][];
            /** @description Where the timer is delivered; null if what is stored is no request. */
            target: components["schemas"]["TimerTarget"] | null;
            /** @description The trace that the set came with. */
            trace_id?: string;
            /** @description Who has the lease, where that is known. */
            worker?: string;
        };
        /** @description How many timers there are. */
        TimerCounts: {
            /** @description Timers that were given up. */
            dead: number;
            /** @description Timers that are delivered or leased. */
            delivering: number;
            /** @description Timers that are done and kept. */
            done: number;
            /** @description false if a count may be too low. */
            exact?: boolean;
            /** @description Timers that wait. */
            pending: number;
            /** @description Queues with timers. */
            queues: number;
        };
        /** @description A page of timers. */
        TimerPage: {
            /** @description Whether the page ends because it looks no further. */
            bound_reached?: boolean;
            /** @description false if timers may be missing. */
            exact?: boolean;
            /** @description Timers in order of their due times. */
            items: components["schemas"]["Timer"][];
            /** @description The cursor of the next page; null at the end. */
            next: string | null;
            /** @description How many timers are left out that cannot be read. */
            unreadable?: number;
        };
        /** @description Where a timer is delivered. */
        TimerTarget: {
            /** @description The endpoint, unless it is that of the queue. */
            endpoint?: string;
            /** @description Sent with each delivery. */
            headers: components["schemas"]["Headers"];
            /**
             * @description The method, unless it is POST.
             * @enum {string}
             */
            method?: "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS";
            /** @description What follows the URL of the endpoint. */
            path?: string;
            /** @description The deadline of an attempt that holds now. */
            timeout?: components["schemas"]["DurationText"];
            /** @description The URL. */
            url?: string;
        };
        /** @description A token, without its secret. */
        Token: {
            /** @description Until when the secret before the last rotation counts. */
            before_until?: components["schemas"]["Time"];
            /** @description The name of the certificate that stands for its secret. */
            certificate?: string;
            /** @description When it was made. */
            created: components["schemas"]["Time"];
            /** @description When it ends. */
            expires?: components["schemas"]["Time"];
            /** @description The id. */
            id: string;
            /** @description What it is for. */
            name: string;
            /** @description The namespace that it is of. A token without one is of the whole service. */
            namespace?: components["schemas"]["Namespace"];
            /** @description The revision of the token. */
            revision: number;
            /** @description What it opens. */
            scopes: ("read" | "write" | "deliver" | "metrics" | "admin")[];
        };
        /** @description A token with its secret. */
        TokenMade: {
            /** @description Until when the secret before the last rotation counts. */
            before_until?: components["schemas"]["Time"];
            /** @description The name of the certificate that stands for its secret. */
            certificate?: string;
            /** @description When it was made. */
            created: components["schemas"]["Time"];
            /** @description When it ends. */
            expires?: components["schemas"]["Time"];
            /** @description The id. */
            id: string;
            /** @description What it is for. */
            name: string;
            /** @description The namespace that it is of. A token without one is of the whole service. */
            namespace?: components["schemas"]["Namespace"];
            /** @description The revision of the token. */
            revision: number;
            /** @description What it opens. */
            scopes: ("read" | "write" | "deliver" | "metrics" | "admin")[];
            /** @description The token: cwt_, the id, _ and the secret. The service does not know it later. A token that a certificate stands for has none. */
            token?: string;
        };
        /** @description A token is revoked. */
        TokenRevoked: {
            /** @description The id. */
            id: string;
            /** @description true. */
            revoked: boolean;
        };
        /** @description All tokens. */
        Tokens: {
            /** @description The tokens in order of their ids. */
            tokens: components["schemas"]["Token"][];
        };
        /** @description What a set did. */
        WasSet: {
            /** @description When the timer is due. */
            due: components["schemas"]["Time"];
            /** @description The id that every delivery of the timer carries. */
            id: string;
            /** @description The key of the timer. */
            key: string;
            /** @description The queue of the timer. */
            queue: string;
            /** @description The state of the timer that was replaced, or null. */
            replaced: ("pending" | "delivering" | "done" | "dead") | null;
            /** @description The revision of the timer. */
            revision: number;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
