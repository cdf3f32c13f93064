//! The machine the figures belong to, as far as the system tells.

use std::fs::read_to_string;

use serde::{Deserialize, Serialize};

/// What a reader needs to judge the figures.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    /// As in "L1 Data 48K".
    pub(crate) caches: Vec<String>,
    pub(crate) memory: String,
    pub(crate) kernel: String,
    pub(crate) compiler: String,
    pub(crate) optimisation: String,
    pub(crate) page_size: String,
    pub(crate) transparent_huge_pages: String,
    /// Load averages when the run began; it should have had the machine to itself.
    pub(crate) load: String,
}

impl Machine {
    /// What is not known stays empty.
    pub(crate) fn describe() -> Self {
        Self {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            caches: caches(),
            memory: field("/proc/meminfo", "MemTotal"),
            kernel: line("/proc/sys/kernel/osrelease"),
            compiler: env!("COMPILER").to_owned(),
            optimisation: env!("OPTIMISATION").to_owned(),
            page_size: field("/proc/self/smaps", "KernelPageSize"),
            transparent_huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled"),
            load: line("/proc/loadavg"),
        }
    }
}

fn caches() -> Vec<String> {
    let of_index = |index: usize| {
        let part = |name| {
            line(&format!(
                "/sys/devices/system/cpu/cpu0/cache/index{index}/{name}"
            ))
        };
        let size = part("size");
        (!size.is_empty()).then(|| format!("L{} {} {size}", part("level"), part("type")))
    };
    (0..).map_while(of_index).collect()
}

fn line(path: &str) -> String {
    let text = read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// The first `name: value` of a file.
fn field(path: &str, name: &str) -> String {
    let text = read_to_string(path).unwrap_or_default();
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values
        .filter(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
        .next()
        .unwrap_or_default()
}
