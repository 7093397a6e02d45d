//! The table of a run: each figure beside its goal, its floor and the baseline of the same run.

use std::path::Path;

use serde_json::{Value, json};

use crate::machine::Machine;

/// One figure.
pub struct Row {
    what: String,
    unit: &'static str,
    measured: f64,
    goal: Option<f64>,
    floor: Option<(String, f64)>,
    baseline: Option<(&'static str, f64)>,
    note: String,
}

impl Row {
    /// A figure that is better the smaller it is.
    pub fn new(what: impl Into<String>, unit: &'static str, measured: f64) -> Self {
        Self {
            what: what.into(),
            unit,
            measured,
            goal: None,
            floor: None,
            baseline: None,
            note: String::new(),
        }
    }

    /// What it should be at most.
    #[must_use]
    pub fn goal(self, goal: f64) -> Self {
        Self {
            goal: Some(goal),
            ..self
        }
    }

    /// What it cannot go below: a formula and its value here.
    #[must_use]
    pub fn floor(self, formula: impl Into<String>, value: f64) -> Self {
        Self {
            floor: Some((formula.into(), value)),
            ..self
        }
    }

    /// The same on something plain, in the same run.
    #[must_use]
    pub fn baseline(self, name: &'static str, measured: f64) -> Self {
        Self {
            baseline: Some((name, measured)),
            ..self
        }
    }

    /// What else a reader has to know.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self {
            note: note.into(),
            ..self
        }
    }

    fn verdict(&self) -> &'static str {
        match self.goal {
            None => "",
            Some(goal) if self.measured <= goal => "met",
            Some(_) => "MISSED",
        }
    }

    /// The figure and its goal, and below it what to compare it with.
    fn lines(&self) -> String {
        let goal = self.goal.map_or(String::new(), |goal| format!("<= {goal}"));
        let mut lines = format!(
            "{:<78} {:>10.2} {:<16} {goal:>7} {}",
            self.what,
            self.measured,
            self.unit,
            self.verdict()
        );
        let mut below = Vec::new();
        if let Some((formula, value)) = &self.floor {
            below.push(format!("floor {value:.2} = {formula}"));
        }
        if let Some((name, measured)) = &self.baseline {
            let ratio = measured / self.measured;
            below.push(format!("{name} {measured:.2}, {ratio:.2} times as long"));
        }
        if !self.note.is_empty() {
            below.push(self.note.clone());
        }
        if !below.is_empty() {
            lines += "\n    ";
            lines += &below.join("; ");
        }
        lines
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "unit": self.unit,
            "measured": self.measured,
            "goal": self.goal,
            "verdict": self.verdict(),
            "floor": self.floor.as_ref().map(|(formula, value)| json!({"formula": formula, "value": value})),
            "baseline": self.baseline.as_ref().map(|(name, value)| json!({"name": name, "value": value})),
            "note": self.note,
        })
    }
}

/// Prints rows as they come, and keeps them.
pub struct Table {
    machine: Machine,
    rows: Vec<Row>,
}

impl Table {
    /// Prints the machine.
    #[must_use]
    pub fn new(title: &str) -> Self {
        let machine = Machine::measure();
        show(&format!("# {title}"));
        for (key, value) in &machine.description {
            show(&format!("  {key}: {value}"));
        }
        Self {
            machine,
            rows: Vec::new(),
        }
    }

    /// What the floors are made of.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Prints and keeps a row.
    pub fn add(&mut self, row: Row) {
        show(&row.lines());
        self.rows.push(row);
    }

    /// Says how many goals were met, and writes all as JSON if asked.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self, json_path: Option<&Path>) -> std::io::Result<()> {
        let with_verdict = |verdict: &str| {
            self.rows
                .iter()
                .filter(|row| row.verdict() == verdict)
                .count()
        };
        let (met, missed) = (with_verdict("met"), with_verdict("MISSED"));
        show(&format!("{met} goals met, {missed} missed"));
        let Some(path) = json_path else {
            return Ok(());
        };
        let machine: serde_json::Map<_, _> = self
            .machine
            .description
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        let rows: Vec<_> = self.rows.iter().map(Row::json).collect();
        let document = json!({"machine": machine, "rows": rows});
        std::fs::write(path, format!("{document:#}\n"))
    }
}

#[expect(clippy::print_stdout, reason = "the table is what a run is for")]
fn show(line: &str) {
    println!("{line}");
}
