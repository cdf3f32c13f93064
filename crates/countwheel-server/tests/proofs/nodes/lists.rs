//! Lists and figures over all queues of three nodes: one answer, whichever node is asked.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Nodes, TTL, asked};
use crate::harness::process::Server;
use crate::harness::{now_us, turn, wait_until};

const TIMERS: usize = 300;
const QUEUES: usize = 5;

fn at(number: usize) -> String {
    let minutes = number * 10;
    let (day, hour, minute) = (minutes / 1_440 + 1, minutes / 60 % 24, minutes % 60);
    format!("2099-03-{day:02}T{hour:02}:{minute:02}:00.000000Z")
}

/// All timers in order of due time, each page from the next node with the cursor of the one before.
fn walked(nodes: &[&Server]) -> Vec<(String, String)> {
    let (mut found, mut after) = (Vec::new(), String::new());
    for node in nodes.iter().cycle() {
        let path = format!("/v1/timers?state=pending&limit=37{after}");
        let page = asked(node, "GET", &path, None).body;
        for timer in page["items"].as_array().expect("a list") {
            let text = |field: &str| timer[field].as_str().expect("a text").to_owned();
            found.push((text("due"), text("key")));
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    found
}

/// What a node says of all, once it says that this is exact: as much as a full list has.
fn demand_exact(node: &Server, listed: &[(String, String)]) {
    wait_until("the figures are exact", || {
        let stats = asked(node, "GET", "/v1/stats", None).body;
        stats["exact"].is_null() && stats["timers"]["exact"].is_null()
    });
    let stats = asked(node, "GET", "/v1/stats", None).body;
    assert_eq!(stats["timers"]["pending"], TIMERS, "{stats}");
    assert_eq!(stats["timers"]["queues"], QUEUES, "{stats}");
    assert_eq!(stats["overdue"]["timers"], 0, "{stats}");
    assert_eq!(stats["due"][4]["timers"], TIMERS, "{stats}");
    let due = asked(node, "GET", "/v1/stats/due", None).body;
    assert!(due["exact"].is_null(), "{due}");
    let mut counted = 0;
    for bucket in due["buckets"].as_array().expect("a list") {
        let edge = |name: &str| bucket[name].as_str().expect("a time");
        let within = edge("from")..edge("until");
        let here = listed.iter().filter(|(due, _)| within.contains(&&**due));
        let here = here.count();
        assert_eq!(bucket["timers"], here, "{bucket}");
        counted += here;
    }
    assert_eq!(counted, TIMERS);
    let queues = asked(node, "GET", "/v1/queues", None).body;
    assert!(queues["exact"].is_null(), "{queues}");
    let queues = queues["queues"].as_array().expect("a list");
    assert_eq!(queues.len(), QUEUES);
    for queue in queues {
        assert_eq!(queue["pending"], TIMERS / QUEUES, "{queue}");
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn lists_and_figures_of_three_nodes_are_of_all() {
    let _turn = turn();
    let (mut nodes, first) = Nodes::start(3);
    let all = || std::iter::once(&first).chain(&nodes.others);
    std::thread::scope(|scope| {
        for (from, node) in all().cycle().take(12).enumerate() {
            scope.spawn(move || {
                let mut caller = node.caller();
                for number in (from..TIMERS).step_by(12) {
                    let path = format!("/v1/queues/q{}/timers/{number}", number % QUEUES);
                    let set = json!({"at": at(number), "target": {"url": "http://127.0.0.1:1/"}});
                    let set = caller.ask("PUT", &path, Some(&set)).expect("it answers");
                    assert_eq!(set.status, 201, "{}", set.body);
                }
            });
        }
    });
    let expected: Vec<_> = (0..TIMERS)
        .map(|number| (at(number), number.to_string()))
        .collect();
    let asks: Vec<_> = all().collect();
    assert_eq!(walked(&asks), expected);
    for node in &asks {
        demand_exact(node, &expected);
        let stats = asked(node, "GET", "/v1/stats", None).body;
        assert_eq!(stats["nodes"], 3, "{stats}");
    }

    // Nobody says the shards of a node that has died until others have them.
    nodes.others[1].kill();
    let killed = now_us();
    for path in ["/v1/stats", "/v1/stats/due"] {
        let told = asked(&first, "GET", path, None).body;
        // On a machine that takes so long for an answer, others have them by then.
        if Duration::from_micros(now_us() - killed) > TTL / 2 {
            break;
        }
        assert_eq!((&told["exact"], &told["nodes"]), (&json!(false), &json!(2)));
    }
    let due = asked(&first, "GET", "/v1/stats/due", None).body;
    if due["exact"] == Value::Bool(false) {
        let buckets = due["buckets"].as_array().expect("a list").iter();
        let told: u64 = buckets.filter_map(|bucket| bucket["timers"].as_u64()).sum();
        assert!(told < TIMERS as u64, "{due}");
    }
    let asks = [&first, &nodes.others[0]];
    for node in asks {
        demand_exact(node, &expected);
    }
    assert_eq!(walked(&asks), expected);
}
