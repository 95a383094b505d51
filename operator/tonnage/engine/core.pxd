# C types of the engine, for when the module is compiled. Plain Python never reads this file.
cimport cython

from tonnage.engine.schedule cimport Rank
from tonnage.engine.table cimport RequestTable

ctypedef long long integer

cdef integer DECODING, DONE, WAITING_WEIGHT, MOST_STEPS
cdef double INFINITY, ROUNDING


cdef class Engine:
    cdef public list ranks
    cdef public integer num_ranks, num_microbatches, draining
    cdef public RequestTable table
    cdef public double now_s, ends_s, first_s, more_s, busy_s, decoding_s, context_s, full_s
    cdef public bint has_chunks
    cdef public integer max_queued_reqs, max_queued_tokens, num_outstanding, step_number
    cdef public integer steps, num_steps, peak_running
    cdef double[::1] base_s, memory_s, compute_s, factor, grid_tokens, grid_s
    cdef integer[::1] grid_num
    cdef integer grid_rows, grid_columns
    cdef double own_s, prompts_s, drain_s, drained_s

    @cython.locals(chosen=Rank, index=integer, found=integer, least=integer, outstanding=integer,
                   arrival_s=double)
    cpdef integer submit(self, integer number) except -2
    @cython.locals(rank=Rank, tokens=integer)
    cpdef integer queued_tokens(self) except -1
    cpdef advance(self, double until_s)
    cpdef advance_alike(self)
    cpdef double step(self) except -1
    @cython.locals(elapsed_s=double, passed=double, lead=double, root=double, steps=integer)
    cpdef integer ended(self, double at_s) except -1
    cpdef double lasts_s(self, integer steps) except? -1
    @cython.locals(num_decoding=integer, prefill=integer, running=integer, rank=Rank,
                   line=integer, shared_s=double, left_s=double, hidden_s=double)
    cdef void _begin(self, bint is_single) except *
    @cython.locals(steps=integer, rank=Rank)
    cdef integer _alike(self, integer line, integer num_decoding) except -1
    @cython.locals(found=integer, line=integer, highest_s=double, value_s=double)
    cdef integer _slowest(self, integer num_decoding, integer later) except -1
    @cython.locals(rank=Rank, own_s=double, factor=double, price_s=double)
    cdef double _line_s(self, integer line, integer num_decoding, integer later) except -1
    @cython.locals(rank=Rank)
    cdef double _own_prompts_s(self, integer line) except? -1
    @cython.locals(rank=Rank, slope_s=double)
    cdef double _slope_s(self, integer line, integer num_decoding) except? -1
    @cython.locals(row=integer, column=integer, low=integer, high=integer, share=double,
                   left=double, right=double, along=double, at=integer, beyond=integer,
                   first_s=double, second_s=double)
    cdef double _prefill_s(self, integer num_decoding, integer tokens) except? -1
    @cython.locals(steps=integer)
    cdef void _cut(self, double at_s) except *
    @cython.locals(duration_s=double, last_s=double, finished=integer, rank=Rank)
    cdef void _end(self) except *
