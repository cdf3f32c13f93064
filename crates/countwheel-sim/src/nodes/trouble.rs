//! What goes wrong.

use std::time::Duration;

use countwheel_cluster::Registry;
use countwheel_durable::store::Shard;
use countwheel_postgres::testing::SimulatedFaults;
use countwheel_time::Clock;

use super::{SECOND, World};

impl World {
    pub(super) fn fail_something(&mut self) {
        let time = self.time();
        let machine = self.faults.below(self.machines.len() as u64);
        let machine = usize::try_from(machine).unwrap_or(0);
        self.wake();
        if self.faults.one_in(self.plan.kills) && self.machines[machine].process.is_some() {
            self.note(format_args!("node {machine} is killed"));
            let starts_at = time + self.faults.below(20 * SECOND);
            let killed = &mut self.machines[machine];
            (killed.process, killed.starts_at) = (None, starts_at);
            killed.born = None;
            killed.paused_until = 0;
            self.times.lock().asleep.remove(&machine);
            self.report.killed += 1;
        }
        if self.faults.one_in(self.plan.pauses) {
            let span = self.draw_span();
            let sleeps = self.faults.one_in(2);
            self.note(format_args!(
                "node {machine} is paused for {span}, asleep: {sleeps}"
            ));
            self.machines[machine].paused_until = time + span;
            if sleeps {
                self.times.lock().asleep.insert(machine);
            }
            self.report.paused += 1;
        }
        if self.faults.one_in(self.plan.cuts) {
            let span = self.draw_span();
            let hears_nothing = self.faults.one_in(3);
            self.note(format_args!(
                "node {machine} is cut off for {span}, deaf: {hears_nothing}"
            ));
            let cut = &mut self.machines[machine];
            (cut.cut_until, cut.hears_nothing) = (time + span, hears_nothing);
            self.report.cut_off += 1;
        }
        if self.faults.one_in(self.plan.stalls) && self.stalled_until < time {
            self.note("the server is away for three leases");
            self.stalled_until = time + 3 * self.ttl();
            self.report.stalls += 1;
        }
        if self.faults.one_in(self.plan.clock_steps) {
            let (now, span) = (self.server_clock.timestamp(), self.draw_span());
            let span = Duration::from_micros(span);
            // A lease that ends by a step, and not by time, keeps a second node of its name out no longer.
            let mut names: Vec<_> = self.machines.iter().map(|it| &it.name).collect();
            names.sort_unstable();
            let has_twins = names.windows(2).any(|pair| pair[0] == pair[1]);
            let to = match self.faults.one_in(2) && !has_twins {
                true => now + span,
                false => now.saturating_sub(span),
            };
            self.note(format_args!(
                "the server's clock is set from {now:?} to {to:?}"
            ));
            self.show_clock();
            self.server_clock.set_timestamp(to);
            (self.back_until, self.troubled) = (time + self.ttl(), time);
            self.show_clock();
            self.report.clock_steps += 1;
        }
        if self.faults.one_in(self.plan.failovers) {
            self.note("the server fails over");
            self.server.fail_over(0);
            self.troubled = time;
            self.report.failovers += 1;
        }
        self.trouble_network();
        if self.faults.one_in(self.plan.drains) {
            self.drain(machine);
        }
        if self.faults.one_in(self.plan.wishes) {
            self.wish(machine);
        }
        if self.faults.one_in(self.plan.leaves) && self.stalled_until < time {
            self.leave(machine);
        }
    }

    fn wake(&mut self) {
        let time = self.time();
        for (machine, it) in self.machines.iter().enumerate() {
            if it.paused_until <= time {
                self.times.lock().asleep.remove(&machine);
            }
        }
    }

    /// A moment, about a lease, or several.
    pub(super) fn draw_span(&mut self) -> u64 {
        let ttl = self.ttl();
        let most = *self.faults.pick(&[ttl / 2, 2 * ttl, 6 * ttl]);
        1 + self.faults.below(most)
    }

    fn drain(&mut self, machine: usize) {
        let is_draining = !self.drained.remove(&machine);
        if is_draining {
            self.drained.insert(machine);
            self.report.drained += 1;
        }
        self.machines[machine].unwell = self.time();
        self.note(format_args!("node {machine} drains: {is_draining}"));
        let name = self.machines[machine].name.clone();
        let marked = self.observer.registry().mark_draining(&name, is_draining);
        // It may not have joined.
        marked.unwrap_or_default();
    }

    /// An operator wants a shard on a machine, or has no wish any more.
    fn wish(&mut self, machine: usize) {
        let shard = u16::try_from(self.faults.below(self.plan.shards.into())).unwrap_or(0);
        let name = self.machines[machine].name.clone();
        let (shard, name) = match self.faults.below(8) {
            0 => (None, None),
            1 => (Some(Shard(shard)), None),
            _ => (Some(Shard(shard)), Some(name)),
        };
        let wished = self.observer.registry().want(shard, name.as_deref());
        self.note(format_args!("{shard:?} is wanted on {name:?}: {wished:?}"));
        // It may not have joined.
        self.report.wishes += u64::from(wished.is_ok());
    }

    fn leave(&mut self, machine: usize) {
        let time = self.time();
        let until = time + 1 + self.faults.below(20 * SECOND);
        let it = &mut self.machines[machine];
        let Some(process) = &mut it.process else {
            return;
        };
        if process.leaves_until.is_none() && it.paused_until <= time {
            process.leaves_until = Some(until);
            process.control.leave();
            it.unwell = time;
            // Another process may have the name by now. The others learn of it by the shards that they are
            // given, if this fails.
            let looked = process.registry.look(false);
            let marked = looked.and_then(|_| process.registry.mark_draining(&it.name, true));
            marked.unwrap_or_default();
            self.report.left += 1;
            self.note(format_args!("node {machine} leaves"));
        }
    }

    /// What goes wrong with the statements of a machine now.
    pub(super) fn faults_of(&self, machine: usize) -> SimulatedFaults {
        let (time, machine) = (self.time(), &self.machines[machine]);
        let mut faults = match self.healing {
            true => SimulatedFaults::default(),
            false => self.plan.server,
        };
        if self.stalled_until > time || machine.cut_until > time && !machine.hears_nothing {
            faults.away = 1;
        } else if machine.cut_until > time {
            faults.answer_lost = 1;
        }
        faults
    }
}
