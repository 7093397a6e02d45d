//! Steps run later than they are reserved, in the same order; some fail.

use super::Machine;
use crate::memory::Work;
use crate::oracle::InStep;

impl Machine {
    pub(super) fn num_queued_steps(&self) -> usize {
        let is_step = |work: &&Work| matches!(work, Work::Step(_));
        self.queue.iter().filter(is_step).count()
    }

    /// Runs the work up to the second step.
    pub(super) fn run_oldest(&mut self) {
        let mut has_run = false;
        while let Some(work) = self.queue.front() {
            let is_step = matches!(work, Work::Step(_));
            if is_step && has_run {
                return;
            }
            has_run |= is_step;
            self.memory.run(work);
            self.queue.pop_front();
        }
    }

    /// The newest step fails, unless one of its sequences was committed on the strength of it.
    pub(super) fn fail_newest(&mut self, with_copies: bool, num_writes: usize) {
        let Some(newest) = self
            .queue
            .iter()
            .rposition(|work| matches!(work, Work::Step(_)))
        else {
            return;
        };
        let Work::Step(step) = &self.queue[newest] else {
            return;
        };
        let number = step.number;
        let is_of_step = |in_step: &InStep| in_step.number == number;
        let is_open = step.handles.iter().all(|handle| {
            let sequence = self.oracle.live.get(handle);
            sequence.is_some_and(|row| row.in_step.as_ref().is_some_and(is_of_step))
        });
        if !is_open || step.is_committed {
            return;
        }
        for handle in step.handles.clone() {
            self.oracle.live.get_mut(&handle).expect("open").in_step = None;
        }
        for (place, work) in std::mem::take(&mut self.queue).iter().enumerate() {
            match work {
                Work::Step(step) if place == newest => {
                    self.memory.run_partly(step, with_copies, num_writes);
                }
                _ => self.memory.run(work),
            }
        }
        self.coverage.note("a step that fails");
    }

    pub(super) fn poison_freed(&mut self, used_before: u64) {
        let freed = used_before & !self.oracle.used();
        let freed: Vec<u32> = (1..=self.oracle.config.num_blocks())
            .filter(|block| freed >> block & 1 == 1)
            .collect();
        if !freed.is_empty() {
            self.queue.push_back(Work::Poison(freed));
        }
        if self.num_queued_steps() == 0 {
            self.run_oldest();
        }
    }
}
