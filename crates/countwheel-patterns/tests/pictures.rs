//! The pictures of the guide's page on wheels, drawn from wheels as they are: each is the same as
//! its file in `guide/pictures`, and as the one that the crate's documentation shows.
//!
//! `COUNTWHEEL_WRITE_PICTURES=1 cargo test -p countwheel-patterns --test pictures` writes the files
//! again.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::collections::BTreeMap;
use std::env;
use std::f64::consts::TAU;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use countwheel_core::{HashedWheel, HierarchicalWheel, Tick};

const STYLE: &str = "
  text { font: 14px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; }
  .faint { fill: #59636e; font-size: 12px; }
  .back { fill: #ffffff; }
  .slot { fill: #f6f8fa; stroke: #8c959f; }
  .under { fill: #ffd8a8; stroke: #8c959f; }
  .hand { stroke: #c92a2a; stroke-width: 3; stroke-linecap: round; }
  .tip { fill: #c92a2a; }
  .entry { fill: #d0ebff; stroke: #1971c2; }
  .mark { fill: #1971c2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .faint { fill: #9198a1; }
    .back { fill: #0d1117; }
    .slot { fill: #161b22; stroke: #6e7681; }
    .under { fill: #66390a; stroke: #6e7681; }
    .hand { stroke: #ff8787; }
    .tip { fill: #ff8787; }
    .entry { fill: #0b3a5e; stroke: #4dabf7; }
    .mark { fill: #4dabf7; }
  }
";

/// A picture with what it says to those who do not see it.
struct Picture {
    name: &'static str,
    title: &'static str,
    description: String,
    size: (u32, u32),
    shapes: String,
}

impl Picture {
    fn new(name: &'static str, title: &'static str, size: (u32, u32)) -> Self {
        Self {
            name,
            title,
            description: String::new(),
            size,
            shapes: String::new(),
        }
    }

    fn say(&mut self, sentence: &str) {
        let gap = if self.description.is_empty() { "" } else { " " };
        write!(self.description, "{gap}{sentence}").unwrap();
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
        writeln!(
            self.shapes,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        )
        .unwrap();
    }

    fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        writeln!(
            self.shapes,
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        )
        .unwrap();
    }

    fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        writeln!(
            self.shapes,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        )
        .unwrap();
    }

    /// The hand beside a strip, with its tip at a point below it.
    fn pointer(&mut self, (x, y): (f64, f64)) {
        let (left, right, top) = (x - 5.0, x + 5.0, y - 9.0);
        writeln!(
            self.shapes,
            "<path class=\"tip\" d=\"M{left:.1} {top:.1}L{right:.1} {top:.1}L{x:.1} {y:.1}Z\"/>"
        )
        .unwrap();
    }

    /// A label in a box around a point.
    fn entry(&mut self, (x, y): (f64, f64), width: f64, label: &str) {
        self.rect("entry", (x - width / 2.0, y - 10.0), (width, 20.0));
        self.text("", (x, y + 5.0), "middle", label);
    }

    fn svg(&self) -> String {
        let (name, (width, height)) = (self.name, self.size);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" \
             aria-labelledby=\"{name}-title {name}-desc\">\n\
             <title id=\"{name}-title\">{}</title>\n<desc id=\"{name}-desc\">{}</desc>\n\
             <style>{STYLE}</style>\n\
             <rect class=\"back\" width=\"{width}\" height=\"{height}\"/>\n{}</svg>\n",
            self.title, self.description, self.shapes
        )
    }
}

/// A ring at one moment: for each slot the labels of its entries.
struct Ring {
    title: String,
    hand: usize,
    slots: Vec<Vec<String>>,
}

impl Ring {
    /// Draws it around `(x, y)`, with slot 0 at the top and the hand going right.
    fn draw(&self, picture: &mut Picture, (x, y): (f64, f64), radius: f64) {
        let angle = |slot: f64| TAU * (slot / self.slots.len() as f64 - 0.25);
        let at = |slot: f64, radius: f64| {
            let angle = angle(slot);
            (x + radius * angle.cos(), y + radius * angle.sin())
        };
        picture.text("title", (x, y - radius - 96.0), "middle", &self.title);
        picture.say(&format!(
            "{}. The hand points at slot {}.",
            self.title, self.hand
        ));
        for (slot, entries) in self.slots.iter().enumerate() {
            let place = slot as f64;
            let (from, to) = (at(place - 0.5, radius), at(place + 0.5, radius));
            let class = if slot == self.hand { "under" } else { "slot" };
            writeln!(
                picture.shapes,
                "<path class=\"{class}\" d=\"M{x:.1} {y:.1}L{:.1} {:.1}A{radius:.1} {radius:.1} 0 0 1 {:.1} {:.1}Z\"/>",
                from.0, from.1, to.0, to.1
            )
            .unwrap();
            let (number_x, number_y) = at(place, radius - 14.0);
            let number = slot.to_string();
            picture.text("faint", (number_x, number_y + 4.0), "middle", &number);
            let (entry_x, entry_y) = at(place, radius + 52.0);
            let top = entry_y - 11.0 * (entries.len() as f64 - 1.0);
            for (entry, label) in entries.iter().enumerate() {
                picture.entry((entry_x, top + 22.0 * entry as f64), 64.0, label);
            }
            if !entries.is_empty() {
                picture.say(&format!("In slot {slot}: {}.", entries.join(", ")));
            }
        }
        let tip = at(self.hand as f64, radius - 30.0);
        picture.line("hand", (x, y), tip);
        writeln!(
            picture.shapes,
            "<circle class=\"tip\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\"/>"
        )
        .unwrap();
    }
}

/// Names and deadlines. Two of them share a tick, and three share a slot of eight.
const ENTRIES: [(&str, u64); 6] = [
    ("a", 3),
    ("b", 5),
    ("c", 11),
    ("d", 5),
    ("e", 19),
    ("f", 16),
];

const EIGHT: u64 = 8;

fn ring_of_eight() -> HashedWheel<&'static str> {
    let mut wheel = HashedWheel::with_ticks_per_wheel(8).unwrap();
    for (name, deadline) in ENTRIES {
        wheel.insert(Tick::new(deadline), name);
    }
    wheel
}

/// How often the hand comes by an entry before the time at which it takes the entry out.
fn rounds(deadline: Tick, now: Tick, slots: u64) -> u64 {
    (deadline.get() - now.get() - 1) / slots
}

/// What expires up to a tick, with the ticks.
fn expire(wheel: &mut HashedWheel<&'static str>, now: u64) -> Vec<(&'static str, u64)> {
    let mut expired = Vec::new();
    while let Some(entry) = wheel.expire(Tick::new(now)) {
        expired.push((entry.value, wheel.now().get()));
    }
    expired
}

fn label(name: &str, deadline: u64, rounds: u64) -> String {
    match rounds {
        0 => format!("{name} {deadline}"),
        rounds => format!("{name} {deadline} +{rounds}"),
    }
}

fn ring(wheel: &HashedWheel<&'static str>) -> Ring {
    let now = wheel.now();
    let mut slots = vec![Vec::new(); wheel.ticks_per_wheel()];
    for slot in wheel.slots() {
        let labels = slot
            .entries
            .iter()
            .map(|&(deadline, name)| label(name, deadline.get(), rounds(deadline, now, EIGHT)));
        slots[slot.slot].extend(labels);
    }
    Ring {
        title: format!("tick {}", now.get()),
        hand: usize::try_from(now.get()).unwrap() % slots.len(),
        slots,
    }
}

#[test]
fn a_ring_of_eight_slots_is_drawn() {
    let mut picture = Picture::new(
        "ring",
        "A ring of eight slots, now and a turn later",
        (776, 436),
    );
    picture.say("An entry is a name, its deadline, and + the rounds that it still waits.");
    let mut wheel = ring_of_eight();
    assert_eq!(expire(&mut wheel, 2), []);
    ring(&wheel).draw(&mut picture, (194.0, 232.0), 106.0);
    assert_eq!(expire(&mut wheel, 10), [("a", 3), ("b", 5), ("d", 5)]);
    ring(&wheel).draw(&mut picture, (582.0, 232.0), 106.0);
    check(&picture);
}

/// The number behind the plus is no number of the wheel, which keeps deadlines. So it is counted.
#[test]
fn the_hand_comes_by_an_entry_as_often_as_the_picture_says() {
    for (name, deadline) in ENTRIES {
        let mut wheel = ring_of_eight();
        let said = rounds(Tick::new(deadline), Tick::ZERO, EIGHT);
        let mut passed = 0;
        for tick in 1.. {
            let expired = expire(&mut wheel, tick);
            if expired.contains(&(name, tick)) {
                break;
            }
            passed += u64::from(tick % EIGHT == deadline % EIGHT);
        }
        assert_eq!(passed, said, "{name}");
    }
}

/// How go-zero files its tasks: a place and a number of turns, which the hand counts down.
struct GoZero {
    ticked_pos: usize,
    slots: Vec<Vec<(&'static str, u64, u64)>>,
}

const TWELVE: usize = 12;

impl GoZero {
    fn new() -> Self {
        Self {
            ticked_pos: TWELVE - 1,
            slots: vec![Vec::new(); TWELVE],
        }
    }

    fn set(&mut self, name: &'static str, steps: u64) {
        let twelve = TWELVE as u64;
        let place = (self.ticked_pos as u64 + steps) % twelve;
        let circle = (steps - 1) / twelve;
        self.slots[usize::try_from(place).unwrap()].push((name, steps, circle));
    }

    fn tick(&mut self) -> Vec<&'static str> {
        self.ticked_pos = (self.ticked_pos + 1) % TWELVE;
        let slot = &mut self.slots[self.ticked_pos];
        let (due, waiting) = slot
            .iter()
            .copied()
            .partition::<Vec<_>, _>(|&(.., circle)| circle == 0);
        *slot = waiting;
        slot.iter_mut().for_each(|(.., circle)| *circle -= 1);
        due.into_iter().map(|(name, ..)| name).collect()
    }

    fn ring(&self, title: &str) -> Ring {
        let slot = |tasks: &Vec<(&str, u64, u64)>| {
            let labels = tasks
                .iter()
                .map(|&(name, steps, circle)| label(name, steps, circle));
            labels.collect()
        };
        Ring {
            title: title.to_owned(),
            hand: self.ticked_pos,
            slots: self.slots.iter().map(slot).collect(),
        }
    }
}

const TASKS: [(&str, u64); 6] = [
    ("a", 1),
    ("b", 4),
    ("c", 12),
    ("d", 16),
    ("e", 28),
    ("f", 31),
];

#[test]
fn the_twelve_slots_of_go_zero_are_drawn() {
    let mut picture = Picture::new(
        "twelve",
        "Twelve slots of go-zero, now and a turn later",
        (848, 460),
    );
    picture.say("A task is a name, its delay in intervals, and + its circle.");
    let mut theirs = GoZero::new();
    let mut ours = HashedWheel::with_ticks_per_wheel(TWELVE).unwrap();
    assert_eq!(ours.ticks_per_wheel(), 16, "a power of two");
    for (name, steps) in TASKS {
        theirs.set(name, steps);
        ours.insert(Tick::new(steps), name);
    }
    let rings = (212.0, 636.0, 244.0);
    theirs
        .ring("as they are set")
        .draw(&mut picture, (rings.0, rings.2), 118.0);
    for tick in 1..=40 {
        let expired: Vec<_> = expire(&mut ours, tick);
        let due: Vec<_> = theirs.tick().into_iter().map(|name| (name, tick)).collect();
        assert_eq!(expired, due, "both take out the same");
        if tick == 12 {
            let title = "after twelve intervals";
            theirs
                .ring(title)
                .draw(&mut picture, (rings.1, rings.2), 118.0);
        }
    }
    assert!(ours.is_empty() && theirs.slots.iter().all(Vec::is_empty));
    check(&picture);
}

/// Entries on three levels.
const SPREAD: [(&str, u64); 6] = [
    ("a", 253),
    ("b", 300),
    ("c", 300),
    ("d", 500),
    ("e", 65_700),
    ("f", 70_000),
];

fn thousands(number: u64) -> String {
    match number {
        ..1_000 => number.to_string(),
        _ => format!("{},{:03}", number / 1_000, number % 1_000),
    }
}

/// Draws the three lowest levels and the run, from `top` downwards.
fn draw_levels(picture: &mut Picture, wheel: &HierarchicalWheel<&'static str>, top: f64) {
    const LEFT: f64 = 170.0;
    const SLOT: f64 = 2.0;
    let now = wheel.now().get();
    let title = format!("The hand at {}", thousands(now));
    picture.text("title", (16.0, top), "start", &title);
    picture.say(&format!("{title}."));
    let mut in_slots = BTreeMap::new();
    for (level, span) in [(0_u32, "1 tick"), (1, "256 ticks"), (2, "65,536 ticks")] {
        let y = top + 26.0 + 50.0 * f64::from(level);
        let digit = (now >> (8 * level)) % 256;
        picture.text("", (16.0, y + 6.0), "start", &format!("level {level}"));
        picture.text(
            "faint",
            (16.0, y + 21.0),
            "start",
            &format!("a slot: {span}"),
        );
        picture.rect("slot", (LEFT, y), (256.0 * SLOT, 16.0));
        for slot in wheel.slots().filter(|slot| slot.level == level as usize) {
            let x = LEFT + SLOT * slot.slot as f64;
            picture.rect("mark", (x - 0.5, y), (SLOT + 1.0, 16.0));
            let names: Vec<_> = slot.entries.iter().map(|(_, name)| **name).collect();
            let names = format!("slot {}: {}", slot.slot, names.join(" "));
            let anchor = match slot.slot {
                ..20 => "start",
                20..230 => "middle",
                _ => "end",
            };
            picture.text("faint", (x + 2.0, y + 31.0), anchor, &names);
            picture.say(&format!("Level {level}, {names}."));
            in_slots.extend(
                slot.entries
                    .iter()
                    .map(|&(deadline, name)| (name, deadline)),
            );
        }
        let hand = LEFT + SLOT * digit as f64 + SLOT / 2.0;
        picture.pointer((hand, y - 1.0));
    }
    let run = wheel
        .iter()
        .filter(|(.., name)| !in_slots.contains_key(*name));
    let mut run: Vec<_> = run
        .map(|(_, deadline, name)| (deadline.get(), *name))
        .collect();
    run.sort_unstable();
    let y = top + 26.0 + 150.0;
    picture.text("", (16.0, y + 6.0), "start", "the run");
    if run.is_empty() {
        picture.text("faint", (LEFT, y + 6.0), "start", "empty");
        picture.say("The run is empty.");
    }
    for (place, (deadline, name)) in run.iter().enumerate() {
        let x = LEFT + 34.0 + 76.0 * place as f64;
        picture.entry((x, y + 2.0), 68.0, &format!("{name} {deadline}"));
        picture.say(&format!("In the run: {name} at {deadline}."));
    }
}

fn advance(wheel: &mut HierarchicalWheel<&'static str>, now: u64) -> Vec<(&'static str, u64)> {
    let mut expired = Vec::new();
    while let Some(entry) = wheel.expire(Tick::new(now)) {
        expired.push((entry.value, entry.deadline.get()));
    }
    wheel.check();
    expired
}

#[test]
fn the_levels_of_a_hierarchy_and_two_cascades_are_drawn() {
    let mut picture = Picture::new(
        "levels",
        "Three levels of a hierarchical wheel, and two cascades",
        (700, 690),
    );
    let mut wheel = HierarchicalWheel::starting_at(Tick::new(250));
    for (name, deadline) in SPREAD {
        wheel.insert(Tick::new(deadline), name);
    }
    draw_levels(&mut picture, &wheel, 30.0);
    assert_eq!(wheel.next_wake(), Some(Tick::new(253)));

    assert_eq!(advance(&mut wheel, 256), [("a", 253)]);
    draw_levels(&mut picture, &wheel, 260.0);
    assert_eq!(wheel.next_wake(), Some(Tick::new(300)));

    let expired = advance(&mut wheel, 65_536);
    assert_eq!(expired, [("b", 300), ("c", 300), ("d", 500)]);
    draw_levels(&mut picture, &wheel, 490.0);
    assert_eq!(wheel.next_wake(), Some(Tick::new(65_700)));
    check(&picture);
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guide/pictures")
}

/// As the target of a link, for documentation that has no files beside its pages.
fn link(picture: &Picture) -> String {
    let mut link = format!("[picture-{}]: data:image/svg+xml,", picture.name);
    for byte in picture.svg().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'/' | b':' | b'=' | b';' => {
                link.push(char::from(byte));
            }
            _ => write!(link, "%{byte:02X}").unwrap(),
        }
    }
    link.push('\n');
    link
}

/// Compares a picture with its files, or writes them.
fn check(picture: &Picture) {
    let svg = folder().join(format!("{}.svg", picture.name));
    let target = folder().join(format!("{}.md", picture.name));
    if env::var_os("COUNTWHEEL_WRITE_PICTURES").is_some() {
        fs::write(&svg, picture.svg()).unwrap();
        fs::write(&target, link(picture)).unwrap();
    }
    let advice = "set COUNTWHEEL_WRITE_PICTURES to write it again";
    let same = |file: &Path, wanted: String| fs::read_to_string(file).is_ok_and(|is| is == wanted);
    assert!(same(&svg, picture.svg()), "{}: {advice}", svg.display());
    assert!(
        same(&target, link(picture)),
        "{}: {advice}",
        target.display()
    );
}
