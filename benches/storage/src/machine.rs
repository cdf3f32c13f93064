//! The machine the figures belong to, as far as the system tells.

use std::fs::read_to_string;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What a reader needs to judge the figures.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory: String,
    pub(crate) kernel: String,
    pub(crate) compiler: String,
    /// Device, type and options of the file system that was written to.
    pub(crate) file_system: String,
    /// Load averages when the run began; it should have had the machine to itself.
    pub(crate) load: String,
}

impl Machine {
    /// What is not known stays empty.
    pub(crate) fn describe(directory: &Path) -> Self {
        Self {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory: field("/proc/meminfo", "MemTotal"),
            kernel: line("/proc/sys/kernel/osrelease"),
            compiler: format!("{}, opt-level {}", env!("COMPILER"), env!("OPTIMISATION")),
            file_system: file_system(directory),
            load: line("/proc/loadavg"),
        }
    }

    /// Whether figures of both may stand side by side.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let of = |machine: &Self| {
            (
                machine.cpu.clone(),
                machine.cores,
                machine.kernel.clone(),
                machine.file_system.clone(),
            )
        };
        of(self) == of(other)
    }
}

fn file_system(directory: &Path) -> String {
    let absolute = directory.canonicalize().unwrap_or_default();
    let text = read_to_string("/proc/self/mounts").unwrap_or_default();
    parse_mounts(&text, &absolute)
}

/// The last of the longest mount points that `directory` is below.
fn parse_mounts(text: &str, directory: &Path) -> String {
    let mounts = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields.as_slice() {
            [device, at, kind, options, ..] if directory.starts_with(at) => {
                Some((at.len(), format!("{kind} on {device} ({options})")))
            }
            _ => None,
        }
    });
    mounts
        .max_by_key(|(len, _)| *len)
        .map_or_else(String::new, |(_, text)| text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_is_named() {
        let text = "/dev/vda / ext4 rw,relatime 0 0\ntmpfs /tmp/x tmpfs rw 0 0\n";
        let of = |path| parse_mounts(text, Path::new(path));
        assert_eq!(of("/home"), "ext4 on /dev/vda (rw,relatime)");
        assert_eq!(of("/tmp/x/y"), "tmpfs on tmpfs (rw)");
        assert_eq!(of("/tmp/xy"), "ext4 on /dev/vda (rw,relatime)");
    }
}
