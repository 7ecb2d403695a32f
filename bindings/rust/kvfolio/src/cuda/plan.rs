// SPDX-License-Identifier: Apache-2.0
//
// SAFETY of every call here: a handle lives as long as its value, and C keeps its kernels; the arrays of
// a plan live as long as its borrow, and are read during the call.

use super::{sys, Kernels, RawStream};
use crate::error::call;
use crate::spec::count;
use crate::{sys as core, PlanArrays, Result};
use std::ptr::{null_mut, NonNull};

/// Options of [`DevicePlan::new`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePlanOptions {
    /// How many a step has at most, padding included.
    pub max_sequences: i32,
    /// How many a step has at most, padding included.
    pub max_tokens: i32,
    /// [`Manager::num_rows`](crate::Manager::num_rows).
    pub num_rows: i32,
    /// By group: its block size, and the columns of its tables,
    /// [`Manager::widest`](crate::Manager::widest) or a bound that the host keeps.
    pub groups: Vec<(i32, i32)>,
    /// Pieces of pinned memory; 0: 2.
    pub steps_in_flight: i32,
    /// As [`PlanOptions`](crate::PlanOptions) of the plans; so the next ones.
    pub pad_with_zero: bool,
    /// Plans have them.
    pub positions: bool,
    /// Plans have these slots.
    pub int64_slots: bool,
    /// Plans have these arrays.
    pub flashinfer: bool,
    /// No block tables in the order of the plan.
    pub no_batch_tables: bool,
    /// Entries that one upload may set, all groups together, rows that are sent whole included; 0:
    /// none is refused. At least the columns of a row of each group, a quarter more with
    /// `flashinfer`: where a plan is refused, undo sequences of the step and send them in the next
    /// ones.
    pub max_changed_entries: i64,
}

/// What the last upload of a [`DevicePlan`] sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UploadInfo {
    /// Bytes of the one copy.
    pub bytes: i64,
    /// From the manager's lists.
    pub changed_entries: i64,
    /// Rows of a group that were sent whole.
    pub whole_rows: i64,
    /// The entries of these.
    pub whole_entries: i64,
}

/// The plan of a step in the memory of a device: arrays that keep their addresses, for captured graphs,
/// and block tables that stay there, of which a step sends only what changed. `cuda_plan.h` says the
/// rules. Plans are made with `changed_entries`; without block tables while
/// [`DevicePlan::needs_block_tables`] says no.
#[derive(Debug)]
pub struct DevicePlan {
    raw: NonNull<sys::kvfolio_cuda_plan>,
}

// SAFETY: a handle may move between threads.
unsafe impl Send for DevicePlan {}

fn groups_of<'a>(plan: &PlanArrays<'a>) -> (*const core::kvfolio_group_plan, i32) {
    let (groups, n) = plan.groups_to_c();
    (groups, count(n))
}

impl DevicePlan {
    /// Waits for the device. `InvalidArgument`: the options. `OutOfMemory`, `Unavailable`.
    pub fn new(kernels: &Kernels, options: &DevicePlanOptions) -> Result<DevicePlan> {
        let c = sys::kvfolio_cuda_plan_options {
            max_sequences: options.max_sequences,
            max_tokens: options.max_tokens,
            num_rows: options.num_rows,
            steps_in_flight: options.steps_in_flight,
            pad_with_zero: options.pad_with_zero as i32,
            positions: options.positions as i32,
            int64_slots: options.int64_slots as i32,
            no_batch_tables: options.no_batch_tables as i32,
            flashinfer: options.flashinfer as i32,
            max_changed_entries: options.max_changed_entries,
            ..sys::kvfolio_cuda_plan_options::new()
        };
        let sizes: Vec<i32> = options.groups.iter().map(|group| group.0).collect();
        let strides: Vec<i32> = options.groups.iter().map(|group| group.1).collect();
        let mut out = null_mut();
        call(|error| unsafe {
            let (sizes, strides, n) = (sizes.as_ptr(), strides.as_ptr(), count(sizes.len()));
            sys::kvfolio_cuda_plan_create(kernels.raw(), &c, sizes, strides, n, &mut out, error)
        })?;
        Ok(DevicePlan { raw: NonNull::new(out).expect("C gave a plan") })
    }

    /// Addresses of the device, the same as long as this; null: not wanted.
    pub fn arrays(&self) -> sys::kvfolio_cuda_plan_arrays {
        let mut out = sys::kvfolio_cuda_plan_arrays::new();
        call(|error| unsafe {
            sys::kvfolio_cuda_plan_get_arrays(self.raw.as_ptr(), &mut out, error)
        })
        .expect("a plan has its arrays");
        out
    }

    /// The same of one group. `InvalidArgument`: there is no such group.
    pub fn group(&self, group: i32) -> Result<sys::kvfolio_cuda_plan_group> {
        let mut out = sys::kvfolio_cuda_plan_group::new();
        call(|error| unsafe {
            sys::kvfolio_cuda_plan_get_group(self.raw.as_ptr(), group, &mut out, error)
        })?;
        Ok(out)
    }

    /// Bytes that it has on the device.
    pub fn device_bytes(&self) -> i64 {
        unsafe { sys::kvfolio_cuda_plan_device_bytes(self.raw.as_ptr()) }
    }

    /// Bytes of pinned memory that it has.
    pub fn pinned_bytes(&self) -> i64 {
        unsafe { sys::kvfolio_cuda_plan_pinned_bytes(self.raw.as_ptr()) }
    }

    /// Brings a plan to the device. Waits for nothing, and has read the plan when it returns.
    /// `FailedPrecondition`: it is older than the last one, or block tables are needed.
    /// `ResourceExhausted`: all pieces of pinned memory are on their way.
    ///
    /// # Safety
    /// The stream is one of this device that lives, or null, no other thread uses it meanwhile, and the
    /// kernels that read the arrays are on it, too, or have ended.
    pub unsafe fn upload(&mut self, plan: &PlanArrays, stream: RawStream) -> Result<()> {
        let (groups, n) = groups_of(plan);
        call(|error| unsafe {
            let (this, step) = (self.raw.as_ptr(), plan.step_to_c());
            sys::kvfolio_cuda_plan_upload(this, step, groups, n, stream, error)
        })
    }

    /// The first half of it, which is not to be captured.
    ///
    /// # Safety
    /// As [`DevicePlan::upload`].
    pub unsafe fn send(&mut self, plan: &PlanArrays, stream: RawStream) -> Result<()> {
        let (groups, n) = groups_of(plan);
        call(|error| unsafe {
            let (this, step) = (self.raw.as_ptr(), plan.step_to_c());
            sys::kvfolio_cuda_plan_send(this, step, groups, n, stream, error)
        })
    }

    /// The second half, which a graph may have in it. It runs once behind each send: a plan behind one
    /// that was not applied is `FailedPrecondition`, and so is the null stream while a blocking stream is
    /// being captured: what was sent stays to be applied.
    ///
    /// # Safety
    /// As [`DevicePlan::upload`].
    pub unsafe fn apply(&mut self, stream: RawStream) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_plan_apply(self.raw.as_ptr(), stream, error) })
    }

    /// A graph that has the second half in it was launched behind the last send, which this does not
    /// see. Where the launch failed: [`DevicePlan::resend`].
    pub fn applied(&mut self) {
        unsafe { sys::kvfolio_cuda_plan_applied(self.raw.as_ptr()) }
    }

    /// For tests: waits for the stream, reads all back and compares it with the plan that was uploaded
    /// last, which has block tables. `Corrupt`, with the first difference.
    ///
    /// # Safety
    /// As [`DevicePlan::upload`].
    pub unsafe fn verify(&mut self, plan: &PlanArrays, stream: RawStream) -> Result<()> {
        let (groups, n) = groups_of(plan);
        call(|error| unsafe {
            let (this, step) = (self.raw.as_ptr(), plan.step_to_c());
            sys::kvfolio_cuda_plan_verify(this, step, groups, n, stream, error)
        })
    }

    /// Whether [`DevicePlan::upload`] would refuse the plan for want of block tables.
    pub fn needs_block_tables(&mut self, plan: &PlanArrays) -> Result<bool> {
        let (groups, n) = groups_of(plan);
        let mut out = 0;
        call(|error| unsafe {
            let (this, step) = (self.raw.as_ptr(), plan.step_to_c());
            sys::kvfolio_cuda_plan_needs_block_tables(this, step, groups, n, &mut out, error)
        })?;
        Ok(out != 0)
    }

    /// Waits until a piece of pinned memory is free.
    pub fn wait(&mut self) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_plan_wait(self.raw.as_ptr(), error) })
    }

    /// What the last upload sent.
    pub fn last_upload(&self) -> UploadInfo {
        let mut out = sys::kvfolio_cuda_upload_info::new();
        call(|error| unsafe {
            sys::kvfolio_cuda_plan_last_upload(self.raw.as_ptr(), &mut out, error)
        })
        .expect("a plan has its numbers");
        UploadInfo {
            bytes: out.bytes,
            changed_entries: out.changed_entries,
            whole_rows: out.whole_rows,
            whole_entries: out.whole_entries,
        }
    }

    /// Sends every row whole when a plan has it next: after memory of the device was lost, or before the
    /// plans of another manager.
    pub fn resend(&mut self) {
        unsafe { sys::kvfolio_cuda_plan_resend(self.raw.as_ptr()) }
    }
}

impl Drop for DevicePlan {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_plan_destroy(self.raw.as_ptr()) }
    }
}
