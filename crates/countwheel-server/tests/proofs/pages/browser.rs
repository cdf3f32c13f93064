//! Chromium without a window, driven over WebDriver.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::harness::caller::Caller;
use crate::harness::{Directory, wait_until};

/// What Chromium is told: it shows what it is given, and talks to nobody else.
const ARGUMENTS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
];

/// By what colours a page is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Theme {
    Light,
    Dark,
}

impl Theme {
    pub(crate) const ALL: [Self; 2] = [Self::Light, Self::Dark];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// A browser with one page.
pub(crate) struct Browser {
    driver: Child,
    caller: Caller,
    session: String,
    /// What it writes to disk; removed after its end.
    _profile: Directory,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let profile = Directory::new("pages-profile");
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let mut said = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = said.find_map(|line| {
            let line = line.ok()?;
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let address = SocketAddr::from(([127, 0, 0, 1], port.expect("it says its port")));
        let mut caller = Caller::connect(address).expect("it listens");
        let mut arguments: Vec<String> = ARGUMENTS.map(str::to_owned).into();
        arguments.push(format!(
            "--user-data-dir={}",
            profile.join("data").display()
        ));
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": arguments},
        }}});
        let reply = caller.ask("POST", "/session", Some(&capabilities)).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let session = reply.body["value"]["sessionId"].as_str().unwrap();
        Self {
            session: format!("/session/{session}"),
            driver,
            caller,
            _profile: profile,
        }
    }

    #[track_caller]
    fn ask(&mut self, command: &str, body: &Value) -> Value {
        let path = format!("{}/{command}", self.session);
        let reply = self.caller.ask("POST", &path, Some(body));
        let mut reply = reply.unwrap_or_else(|| panic!("no answer to {command}"));
        assert_eq!(reply.status, 200, "{command}: {}", reply.body);
        reply.body["value"].take()
    }

    /// Asks the browser below WebDriver.
    #[track_caller]
    fn tell(&mut self, command: &str, parameters: &Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.ask("goog/cdp/execute", &body)
    }

    pub(crate) fn size(&mut self, width: u32) {
        let parameters =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.tell("Emulation.setDeviceMetricsOverride", &parameters);
    }

    pub(crate) fn theme(&mut self, theme: Theme) {
        let feature = json!({"name": "prefers-color-scheme", "value": theme.as_str()});
        self.tell(
            "Emulation.setEmulatedMedia",
            &json!({"features": [feature]}),
        );
    }

    #[track_caller]
    pub(crate) fn open(&mut self, url: &str) {
        self.ask("url", &json!({"url": url}));
    }

    /// Runs the body of a function in the page, and gives what it returns.
    #[track_caller]
    pub(crate) fn run(&mut self, script: &str) -> Value {
        self.ask("execute/sync", &json!({"script": script, "args": []}))
    }

    /// The same; it calls `done` with what it has.
    #[track_caller]
    pub(crate) fn run_until_done(&mut self, script: &str) -> Value {
        let script = format!("const done = arguments[0]; {script}");
        self.ask("execute/async", &json!({"script": script, "args": []}))
    }

    /// Presses a key and lets it go.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let parameters = json!({"type": kind, "key": key, "code": key,
                "windowsVirtualKeyCode": 9});
            self.tell("Input.dispatchKeyEvent", &parameters);
        }
    }

    /// Clicks on the first element that fits.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str) {
        let found = self.ask(
            "element",
            &json!({"using": "css selector", "value": selector}),
        );
        let id = found.as_object().and_then(|found| found.values().next());
        let id = id.and_then(Value::as_str).expect("an element").to_owned();
        self.ask(&format!("element/{id}/click"), &json!({}));
    }

    /// Clicks on what leads to another document, and waits for it: the answer to a click may come before that of the server.
    #[track_caller]
    pub(crate) fn click_through(&mut self, selector: &str) {
        self.run("window.isLeft = true;");
        self.click(selector);
        let arrived = "return !window.isLeft && document.readyState === 'complete';";
        wait_until("the next document is there", || self.run(arrived) == true);
    }

    /// What was written to the console since the last time: violations of the policy among it, but no recommendations, such as
    /// that for a name of a user beside a password.
    pub(crate) fn console(&mut self) -> Vec<String> {
        let entries = self.ask("se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().expect("entries").iter();
        let entries = entries.filter(|entry| entry["source"] != "recommendation");
        entries.map(Value::to_string).collect()
    }

    /// A picture of the whole page, as PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let parameters = json!({"format": "png", "captureBeyondViewport": true});
        let shot = self.tell("Page.captureScreenshot", &parameters);
        let data = shot["data"].as_str().expect("a picture");
        BASE64_STANDARD.decode(data).expect("base64")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its session; the driver alone would leave it.
        drop(self.caller.ask("DELETE", &self.session, None));
        self.driver.kill().unwrap_or_default();
        self.driver.wait().map(drop).unwrap_or_default();
    }
}
