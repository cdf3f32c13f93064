//! The sentences of tokens, of the audit log and of namespaces, which hold of each client.

use serde_json::{Value, json};

use super::speakers::{self, Speaker, Spoken};
use crate::harness::process::Server;
use crate::harness::{Directory, turn};

/// A client in one language, with the tokens that it shows.
struct Office {
    language: &'static str,
    url: String,
}

impl Office {
    /// The client, which shows this token.
    fn with(&self, token: &Value) -> Box<dyn Speaker> {
        speakers::with_token(self.language, &self.url, token.as_str())
    }

    /// Whether a token opens what needs the scope `read`.
    fn opens(&self, token: &Value) -> bool {
        match self.with(token).ask(&json!({"do": "list", "queue": "q"})) {
            Spoken::Ok(_) => true,
            other => {
                self.assert_unauthorized(&other);
                false
            }
        }
    }

    /// Clients that have an error of their own for a wrong token say so in place of the code.
    fn assert_unauthorized(&self, spoken: &Spoken) {
        let (Spoken::No(text) | Spoken::Error(text)) = spoken else {
            panic!("{}: {spoken:?}", self.language);
        };
        let kind = text.split(':').next().unwrap_or_default();
        assert_eq!(kind, "unauthorized", "{}: {text}", self.language);
    }
}

fn ok(speaker: &mut dyn Speaker, asked: &Value) -> Value {
    match speaker.ask(asked) {
        Spoken::Ok(answer) => answer,
        other => panic!("{}: {asked}: {other:?}", speaker.name()),
    }
}

fn refused(speaker: &mut dyn Speaker, asked: &Value, code: &str) {
    let spoken = speaker.ask(asked);
    let expected = Spoken::No(code.to_owned());
    assert_eq!(spoken, expected, "{}: {asked}", speaker.name());
}

/// The values of one field of a list.
fn each<'a>(list: &'a Value, field: &str) -> Vec<&'a Value> {
    let list = list.as_array().expect("a list");
    list.iter().map(|item| &item[field]).collect()
}

/// Tells all sentences to a service that has no token yet.
fn hear(office: &Office) {
    let create =
        |name: &str, scopes: &[&str]| json!({"do": "create_token", "name": name, "scopes": scopes});
    let of = |what: &str, id: &Value| json!({"do": what, "id": id});
    let audit = |filter: Value| json!({"do": "audit", "filter": filter});

    // The first token closes the service, so it opens everything.
    let mut anyone = office.with(&Value::Null);
    refused(&mut *anyone, &create("workers", &["read"]), "conflict");
    let ada = ok(&mut *anyone, &create("ada", &["admin"]));
    office.assert_unauthorized(&anyone.ask(&json!({"do": "tokens"})));
    let mut admin = office.with(&ada["token"]);
    let admin = &mut *admin;
    refused(admin, &of("revoke_token", &ada["id"]), "conflict");

    // A token opens what its scopes say, and its secret is told once.
    let first = ok(admin, &create("workers", &["deliver", "read"]));
    let id = &first["id"];
    assert_eq!(first["scopes"], json!(["read", "deliver"]));
    assert!(office.opens(&first["token"]));
    let mut workers = office.with(&first["token"]);
    for asked in [
        json!({"do": "tokens"}),
        of("token", id),
        of("rotate_token", id),
        audit(json!({})),
    ] {
        refused(&mut *workers, &asked, "forbidden");
    }
    let shown = ok(admin, &of("token", id));
    assert_eq!(
        (&shown["name"], &shown["revision"]),
        (&json!("workers"), &first["revision"])
    );
    let all = ok(admin, &json!({"do": "tokens"}));
    let ids = each(&all["tokens"], "id");
    assert!(
        ids.len() == 2 && ids.contains(&id) && ids.contains(&&ada["id"]),
        "{all}"
    );
    assert!(!all.to_string().contains("cwt_") && !shown.to_string().contains("cwt_"));

    // A rotated token has another secret; the one before counts for its overlap.
    let mut rotate = of("rotate_token", id);
    rotate["overlap"] = json!("1h");
    let second = ok(admin, &rotate);
    assert_ne!(first["token"], second["token"]);
    assert!(office.opens(&first["token"]) && office.opens(&second["token"]));
    let third = ok(admin, &of("rotate_token", id));
    assert!(!office.opens(&first["token"]) && !office.opens(&second["token"]));

    // A token is revoked once, and only if it has the revision that the caller names.
    let revoke =
        |revision: &Value| json!({"do": "revoke_token", "id": id, "if": {"revision": revision}});
    refused(admin, &revoke(&first["revision"]), "revision_mismatch");
    assert!(office.opens(&third["token"]));
    assert_eq!(ok(admin, &revoke(&third["revision"]))["id"], *id);
    assert!(!office.opens(&third["token"]));
    for what in ["token", "rotate_token", "revoke_token"] {
        for unknown in [
            id,
            &json!("nobody"),
            &json!("a/b"),
            &json!("x:rotate"),
            &json!("ä"),
        ] {
            refused(admin, &of(what, unknown), "not_found");
        }
    }
    refused(admin, &create("", &["read"]), "malformed");
    refused(admin, &create("x", &["all"]), "malformed");
    refused(admin, &create("x", &[]), "malformed");

    // The audit log has an entry of each change and of no refusal, by its caller, over all pages.
    let ask = audit(json!({"order": "oldest", "limit": 2}));
    let log = ok(admin, &ask);
    let operations = each(&log["entries"], "operation");
    let done = [
        "createToken",
        "createToken",
        "rotateToken",
        "rotateToken",
        "revokeToken",
    ];
    assert_eq!(operations, done, "{log}");
    let callers: Vec<&Value> = log["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["who"]["kind"])
        .collect();
    assert_eq!(
        callers,
        ["anyone", "token", "token", "token", "token"],
        "{log}"
    );
    let mut newest = ok(admin, &audit(json!({})))["entries"]
        .as_array()
        .unwrap()
        .clone();
    newest.reverse();
    assert_eq!(log["entries"], Value::Array(newest));
    let some = ok(
        admin,
        &audit(json!({"who": "ada", "operation": "rotateToken"})),
    );
    assert_eq!(
        each(&some["entries"], "setting"),
        [&format!("token/{}", id.as_str().unwrap()); 2]
    );
    assert_eq!(
        ok(admin, &audit(json!({"who": "nobody"})))["entries"],
        json!([])
    );
    refused(admin, &audit(json!({"limit": 0})), "malformed");
    refused(admin, &audit(json!({"limit": 1_001})), "malformed");
}

/// Tells the sentences of namespaces to a service that has no token yet.
fn hear_namespaces(office: &Office) {
    const QUEUE: &str = "tenant-7/orders";
    let put = |name: &str, quotas: Value, condition: Value| json!({"do": "put_namespace", "name": name, "quotas": quotas, "if": condition});
    let of = |what: &str, name: &str| json!({"do": what, "name": name});
    let queue = |what: &str, queue: &str| json!({"do": what, "queue": queue});
    let timer = |what: &str, key: &str| json!({"do": what, "queue": QUEUE, "key": key});
    let set = |queue: &str, key: &str| json!({"do": "set", "queue": queue, "key": key, "in": "2h", "url": "http://127.0.0.1:9/"});
    let mut admin = office.with(&Value::Null);
    let ada = ok(
        &mut *admin,
        &json!({"do": "create_token", "name": "ada", "scopes": ["admin", "read", "write"]}),
    );
    let mut admin = office.with(&ada["token"]);
    let admin = &mut *admin;

    // A namespace is made once, and its quotas are replaced if they have the revision that the caller names.
    refused(admin, &set(QUEUE, "a/b"), "not_found");
    let first = ok(
        admin,
        &put("tenant-7", json!({"timers": 9}), json!("absent")),
    );
    refused(
        admin,
        &put("tenant-7", json!({}), json!("absent")),
        "exists",
    );
    let quotas = json!({"timers": 1, "queues": 2, "rate": {"per_second": 1_000.0, "burst": 1_000}});
    let at = |shown: &Value| json!({"revision": shown["revision"]});
    let second = ok(admin, &put("tenant-7", quotas.clone(), at(&first)));
    refused(
        admin,
        &put("tenant-7", json!({}), at(&first)),
        "revision_mismatch",
    );
    assert_eq!(second["quotas"]["timers"], 1);
    for name in ["a/b", "ä", "a b"] {
        refused(admin, &put(name, json!({}), Value::Null), "malformed");
        refused(admin, &of("namespace", name), "malformed");
    }
    refused(
        admin,
        &put("x", json!({"rate": {"per_second": 0.0}}), Value::Null),
        "invalid_setting",
    );

    // A namespace is shown with what it has, and all are listed with their quotas.
    let shown = ok(admin, &of("namespace", "tenant-7"));
    assert_eq!(shown["revision"], second["revision"]);
    assert_eq!(
        (&shown["quotas"]["timers"], &shown["quotas"]["queues"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(shown["quotas"]["rate"]["burst"], 1_000);
    assert_eq!(shown["usage"]["timers"], 0);
    let all = ok(admin, &json!({"do": "namespaces"}));
    let names = each(&all["namespaces"], "namespace");
    assert_eq!(names, ["default", "tenant-7"], "{all}");
    assert_eq!(all["namespaces"][0]["revision"], Value::Null, "{all}");

    // The queue of a namespace has a slash in its name, which every verb of timers and queues carries.
    let was = ok(admin, &set(QUEUE, "a/b"));
    assert_eq!(was["queue"], QUEUE);
    let mut moved = timer("move", "a/b");
    moved["by"] = json!("-1h");
    assert_eq!(ok(admin, &moved)["old_due"], was["due"]);
    assert_eq!(ok(admin, &timer("get", "a/b"))["queue"], QUEUE);
    let listed = ok(admin, &queue("list", QUEUE));
    assert_eq!(each(&listed["items"], "key"), ["a/b"]);
    let mut drain = queue("drain", QUEUE);
    drain["mode"] = json!("hold");
    assert_eq!(ok(admin, &drain)["queue"], QUEUE);
    refused(admin, &set(QUEUE, "a/b"), "draining");
    assert_eq!(ok(admin, &queue("resume", QUEUE))["queue"], QUEUE);

    // A namespace at its quota takes no new timer, which no client asks for again, and one in place of another.
    refused(admin, &set(QUEUE, "b"), "quota_exceeded");
    assert_eq!(ok(admin, &set(QUEUE, "a/b"))["replaced"], "pending");
    assert_eq!(
        ok(admin, &of("namespace", "tenant-7"))["usage"]["timers"],
        1
    );

    // Above its rate a namespace answers when to ask again, and each client does so.
    let slow = json!({"rate": {"per_second": 2.0, "burst": 1}});
    ok(admin, &put("slow", slow, Value::Null));
    for key in ["a", "b", "c"] {
        assert_eq!(ok(admin, &set("slow/orders", key))["key"], key);
    }

    // A token of a namespace opens what is in it, and nothing else is there for it.
    let tenant = json!({"do": "create_token", "name": "tenant", "scopes": ["admin", "read", "write"], "namespace": "tenant-7"});
    let made = ok(admin, &tenant);
    assert_eq!(made["namespace"], "tenant-7");
    let shown = ok(admin, &json!({"do": "token", "id": made["id"]}));
    assert_eq!(shown["namespace"], "tenant-7");
    let mut tenant = office.with(&made["token"]);
    let tenant = &mut *tenant;
    assert_eq!(ok(tenant, &timer("get", "a/b"))["key"], "a/b");
    for elsewhere in ["orders", "slow/orders", "nobody/orders"] {
        refused(tenant, &queue("list", elsewhere), "not_found");
        refused(tenant, &set(elsewhere, "a"), "not_found");
    }
    refused(
        tenant,
        &put("tenant-7", json!({}), Value::Null),
        "forbidden",
    );
    refused(tenant, &of("remove_namespace", "tenant-7"), "forbidden");
    let mut unknown = json!({"do": "create_token", "name": "x", "scopes": ["read"]});
    unknown["namespace"] = json!("nobody");
    refused(admin, &unknown, "not_found");

    // A namespace is removed once nothing is in it, and only if it has the revision that the caller names.
    let remove = |shown: &Value| json!({"do": "remove_namespace", "name": "tenant-7", "if": {"revision": shown["revision"]}});
    refused(admin, &remove(&second), "not_empty");
    let mut gone = timer("remove", "a/b");
    gone["only_pending"] = json!(false);
    assert_eq!(ok(admin, &gone)["was"], "pending");
    refused(admin, &remove(&second), "not_empty");
    ok(admin, &json!({"do": "revoke_token", "id": made["id"]}));
    refused(admin, &remove(&first), "revision_mismatch");
    assert_eq!(ok(admin, &remove(&second))["namespace"], "tenant-7");
    for what in ["namespace", "remove_namespace"] {
        refused(admin, &of(what, "tenant-7"), "not_found");
    }
}

#[test]
#[ignore = "needs Python and Node with packages: cargo xtask check clients"]
fn the_sentences_of_namespaces_hold_of_each_client() {
    let _turn = turn();
    let directory = Directory::new("namespaces of clients");
    for language in ["Rust", "TypeScript", "Python"] {
        let server = Server::start(&directory.join(language));
        let url = format!("http://{}", server.address);
        hear_namespaces(&Office { language, url });
    }
}

#[test]
#[ignore = "needs Python and Node with packages: cargo xtask check clients"]
fn the_sentences_of_tokens_and_of_the_audit_log_hold_of_each_client() {
    let _turn = turn();
    let directory = Directory::new("administration");
    for language in ["Rust", "TypeScript", "Python"] {
        let server = Server::start(&directory.join(language));
        let url = format!("http://{}", server.address);
        hear(&Office { language, url });
    }
}
