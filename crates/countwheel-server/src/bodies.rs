//! The memory that the bodies of requests take, of one caller and in all.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::callers::Caller;

/// How much there is, and who has it.
#[derive(Debug)]
pub(crate) struct Bodies {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    taken: usize,
    callers: HashMap<Caller, usize>,
}

/// What a body has taken of it, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    bodies: Arc<Bodies>,
    caller: Option<Caller>,
    bytes: usize,
}

impl Bodies {
    /// So many bytes, of which a caller has at most three quarters.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self { most, state })
    }

    /// How many bytes are taken.
    pub(crate) fn taken(&self) -> usize {
        self.state.lock().taken
    }

    /// The share of a body that is `caller`'s.
    pub(crate) fn share(self: &Arc<Self>, caller: Option<Caller>) -> Share {
        let bodies = Arc::clone(self);
        Share {
            bodies,
            caller,
            bytes: 0,
        }
    }
}

impl Share {
    /// Another share of the same caller, which has taken nothing.
    pub(crate) fn another(&self) -> Self {
        self.bodies.share(self.caller)
    }

    /// Takes so many more bytes. `false` if there are not so many for it.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let most = self.bodies.most;
        let mut state = self.bodies.state.lock();
        let own = self.caller.and_then(|caller| state.callers.get(&caller));
        let own = own.copied().unwrap_or(0) + bytes;
        if state.taken + bytes > most || own > most - most / 4 {
            return false;
        }
        state.taken += bytes;
        if let Some(caller) = self.caller {
            state.callers.insert(caller, own);
        }
        self.bytes += bytes;
        true
    }

    /// Gives so many of its bytes back.
    pub(crate) fn give(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        if bytes == 0 {
            return;
        }
        self.bytes -= bytes;
        let mut state = self.bodies.state.lock();
        state.taken -= bytes;
        let Some(caller) = self.caller else { return };
        if let Some(own) = state.callers.get_mut(&caller) {
            *own -= bytes;
            if *own == 0 {
                state.callers.remove(&caller);
            }
        }
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn caller(number: u8) -> Option<Caller> {
        Some(IpAddr::from(Ipv4Addr::new(192, 0, 2, number)).into())
    }

    /// One address had all of it, and every larger body of the others was refused.
    #[test]
    fn a_caller_has_three_quarters_and_everybody_together_all() {
        let bodies = Bodies::new(100);
        let mut own: Vec<_> = (0..4).map(|_| bodies.share(caller(1))).collect();
        let taken: Vec<_> = own.iter_mut().map(|share| share.take(25)).collect();
        assert_eq!(taken, [true, true, true, false]);
        let mut other = bodies.share(caller(2));
        assert!(other.take(20) && !other.take(6) && other.take(5));
        assert_eq!(bodies.taken(), 100);
        drop(own);
        assert!(other.take(50) && !other.take(1));
        drop(other);
        let state = bodies.state.lock();
        assert!(state.taken == 0 && state.callers.is_empty());
    }
}
