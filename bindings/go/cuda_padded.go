// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package kvfolio

// #include <kvfolio/kvfolio_cuda.h>
import "C"

// AttendCapacity is the largest batch that a captured graph is to serve. A plan that is padded to it
// (CUDAKernels.PlanAttendPadded) has a shape, an image and a workspace of one size, whatever the lengths.
type AttendCapacity struct {
	MaxSequences      int
	MaxSequenceTokens int   // of K and V of one sequence
	MaxTokens         int64 // of all together; 0: MaxSequences x MaxSequenceTokens
	MaxQueries        int   // rows of q of one sequence; 0: 1, a decode
}

// Capacity returns that of a padded plan; all 0, but for MaxQueries, where it is not padded.
func (p *CUDAAttendPlan) Capacity() (AttendCapacity, error) {
	s := take()
	c := C.kvfolio_cuda_attend_capacity{struct_size: C.sizeof_kvfolio_cuda_attend_capacity}
	code := C.kvfolio_cuda_attend_plan_get_capacity(p.p(), &c, &s.err)
	return AttendCapacity{int(c.max_sequences), int(c.max_sequence_tokens), int64(c.max_tokens),
		int(c.max_queries)}, s.give(code, p.p() == nil, "CUDAAttendPlan")
}

// Check says whether a graph that captured Attend with this padded plan serves the batch, for a replay
// whose plan is made on the device: only lengths of the host are looked at. ErrInvalidArgument: more
// than the capacity, with both numbers. ErrFailedPrecondition: the plan is not padded.
func (p *CUDAAttendPlan) Check(a *DeviceAttention) error {
	if p.p() == nil {
		return failf(ErrFailedPrecondition, "the CUDAAttendPlan is closed")
	}
	if a == nil {
		return failf(ErrInvalidArgument, "Check: no DeviceAttention")
	}
	if err := a.check("Check"); err != nil {
		return err
	}
	s := take()
	return s.give(C.kvfolio_cuda_attend_plan_check(p.p(), i32(len(a.KVLens)), first(a.QueryStart),
		first(a.KVLens), first(a.TrimSinks), first(a.TrimFirstKept), &s.err), false, "")
}

// Explain returns the target, the kernels that Attend starts, and those that the card has no room for:
// "cuda-sm86-tiles: cuda-narrow, cuda-node; left out: cuda-prefill of bf16 ...".
func (p *CUDAAttendPlan) Explain() string {
	return C.GoString(C.kvfolio_cuda_attend_plan_explain(p.p()))
}

// CUDAPlanFault says what the word of PlanOnDevice means, once it is on the host; nil for CUDANoEntry.
func CUDAPlanFault(plan *CUDAAttendPlan, fault uint64) error {
	s := take()
	return s.give(C.kvfolio_cuda_plan_fault(plan.p(), C.uint64_t(fault), &s.err), plan.p() == nil,
		"CUDAAttendPlan")
}
