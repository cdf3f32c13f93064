//! The sentences of tokens and of the audit log, which hold of each client.

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
