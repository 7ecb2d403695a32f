// SPDX-License-Identifier: Apache-2.0

use crate::error::call;
use crate::memory::no_unwind;
use crate::{sys, Result};
use std::mem::size_of;
use std::os::raw::c_void;
use std::ptr::{null_mut, NonNull};

/// Threads that the caller lends to [`attend`](crate::View::attend). A panic in
/// `parallel_for` ends the program.
///
/// # Safety
///
/// `parallel_for` calls `task(i)` once for each `i` in `0..n`, with no other number, and returns when
/// all have returned. Kernels write from several threads and rely on it.
///
/// ```
/// use kvfolio::Executor;
///
/// struct Scoped(usize);
/// unsafe impl Executor for Scoped {
///     fn num_threads(&self) -> usize { self.0 }
///     fn parallel_for(&self, n: usize, task: &(dyn Fn(usize) + Sync)) {
///         std::thread::scope(|scope| {
///             for first in 0..self.0 {
///                 scope.spawn(move || (first..n).step_by(self.0).for_each(task));
///             }
///         });
///     }
/// }
/// let sum = std::sync::atomic::AtomicUsize::new(0);
/// Scoped(2).parallel_for(5, &|i| { sum.fetch_add(i, std::sync::atomic::Ordering::Relaxed); });
/// assert_eq!((sum.into_inner(), Scoped(2).num_threads()), (10, 2));
/// ```
pub unsafe trait Executor {
    /// How many threads work, the caller included.
    fn num_threads(&self) -> usize;
    /// Calls `task(i)` once for each `i` in `0..n`, as the trait demands. That of a [`ThreadPool`]
    /// panics if n is above 2^31 - 1.
    fn parallel_for(&self, n: usize, task: &(dyn Fn(usize) + Sync));
}

/// Threads for a program that has none to lend. Several threads may use it at a time.
///
/// ```
/// use kvfolio::{Executor, ThreadPool};
///
/// let pool = ThreadPool::new(2)?; // counts the caller
/// let sum = std::sync::atomic::AtomicUsize::new(0);
/// pool.parallel_for(5, &|i| { sum.fetch_add(i, std::sync::atomic::Ordering::Relaxed); });
/// assert_eq!((sum.into_inner(), pool.num_threads()), (10, 2));
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct ThreadPool {
    raw: NonNull<sys::kvfolio_thread_pool>,
    executor: sys::kvfolio_executor,
}

// SAFETY: parallel_for() of the pool may be called by several threads at a time.
unsafe impl Send for ThreadPool {}
unsafe impl Sync for ThreadPool {}

impl ThreadPool {
    /// Starts threads. `num_threads` counts the caller: 1 starts none.
    pub fn new(num_threads: usize) -> Result<ThreadPool> {
        let num_threads = i32::try_from(num_threads).unwrap_or(i32::MAX);
        let mut out = null_mut();
        // SAFETY: C checks the number.
        call(|error| unsafe { sys::kvfolio_thread_pool_create(num_threads, &mut out, error) })?;
        let raw = NonNull::new(out).expect("C gave a pool");
        let executor = sys::kvfolio_executor {
            struct_size: size_of::<sys::kvfolio_executor>() as u32,
            num_threads: 0,
            context: null_mut(),
            parallel_for: None,
        };
        let mut pool = ThreadPool { raw, executor };
        // SAFETY: the struct has its size.
        call(|error| unsafe { sys::kvfolio_thread_pool_executor(out, &mut pool.executor, error) })?;
        Ok(pool)
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ThreadPool({} threads)", self.num_threads())
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: it was created here and goes once; each call that uses it borrows it.
        unsafe { sys::kvfolio_thread_pool_destroy(self.raw.as_ptr()) }
    }
}

// SAFETY: the pool does what the trait asks.
unsafe impl Executor for ThreadPool {
    fn num_threads(&self) -> usize {
        // SAFETY: the pool lives.
        unsafe { sys::kvfolio_thread_pool_num_threads(self.raw.as_ptr()) as usize }
    }

    fn parallel_for(&self, n: usize, task: &(dyn Fn(usize) + Sync)) {
        unsafe extern "C" fn run(arg: *mut c_void, index: i32) {
            // SAFETY: `arg` is that of the call below, which waits for this one.
            let task = unsafe { *(arg as *const &(dyn Fn(usize) + Sync)) };
            no_unwind(|| task(index as usize));
        }
        let n = i32::try_from(n).expect("at most 2^31 - 1 tasks");
        let parallel_for = self.executor.parallel_for.expect("a pool has a function");
        let arg: *const &(dyn Fn(usize) + Sync) = &task;
        // SAFETY: `task` outlives the call, which returns when all tasks have.
        unsafe { parallel_for(self.executor.context, n, Some(run), arg as *mut c_void) }
    }
}

/// What C hands to an executor, as a closure for other threads.
struct Task {
    function: unsafe extern "C" fn(*mut c_void, i32),
    arg: *mut c_void,
}
// SAFETY: C makes tasks to be called by several threads.
unsafe impl Sync for Task {}

impl Task {
    /// Requires: an executor calls it, while C waits, once for each index.
    fn run(&self, index: usize) {
        // SAFETY: as required; index < n, which is an i32.
        unsafe { (self.function)(self.arg, index as i32) }
    }
}

unsafe extern "C" fn lend(
    context: *mut c_void,
    n: i32,
    task: Option<unsafe extern "C" fn(*mut c_void, i32)>,
    arg: *mut c_void,
) {
    // SAFETY: that of to_c(), which the caller of C keeps until C returns.
    let executor = unsafe { *(context as *const &dyn Executor) };
    let (n, function) = match (usize::try_from(n), task) {
        (Ok(n), Some(function)) => (n, function),
        _ => return,
    };
    let task = Task { function, arg };
    no_unwind(|| executor.parallel_for(n, &|i| task.run(i)));
}

/// An executor as C takes it; valid as long as `executor`.
pub(crate) fn to_c(executor: &&dyn Executor) -> sys::kvfolio_executor {
    let context: *const &dyn Executor = executor;
    sys::kvfolio_executor {
        struct_size: size_of::<sys::kvfolio_executor>() as u32,
        num_threads: i32::try_from(executor.num_threads().max(1)).unwrap_or(i32::MAX),
        context: context as *mut c_void,
        parallel_for: Some(lend),
    }
}
