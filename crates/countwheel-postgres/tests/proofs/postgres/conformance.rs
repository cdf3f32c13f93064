//! All that a server has to hold holds of a PostgreSQL.

use countwheel_postgres::conformance;

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_postgresql_holds_the_store() {
    let server = super::server();
    let version = server.execute("SHOW server_version").expect("it is there");
    println!("PostgreSQL {}", version.trim());
    let mut failed = Vec::new();
    let holds = conformance::run(&server.fresh(), |sentence, result| {
        println!("{sentence} {result:?}");
        if result.is_err() {
            failed.push(sentence.to_owned());
        }
    });
    assert!(holds.expect("the server is there"), "{failed:?}");
}
