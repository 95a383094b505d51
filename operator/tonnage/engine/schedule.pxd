# C types of the schedule, for when the module is compiled. Plain Python never reads this file.
cimport cython

from tonnage.engine.chance cimport Chance
from tonnage.engine.table cimport RequestTable

ctypedef long long integer

cdef integer WAITING, PREFILLING, DECODING, DONE, NUMBER_BITS, NUMBER_MASK, SLACK
cdef integer MANY_TOKENS
cdef double ROUNDING


cdef class Heap:
    cdef public integer size
    cdef public integer[::1] entries

    cdef integer least(self) except? -1
    @cython.locals(entries='long long[::1]', at=integer)
    cdef void push(self, integer entry) except *
    @cython.locals(entries='long long[::1]', at=integer, below=integer, entry=integer)
    cdef void pop(self) except *


cdef class Rank:
    cdef public RequestTable table
    cdef public integer max_num_seqs, max_batched_tokens, block_size, num_tables, fixed_blocks
    cdef public integer window_tables, window_blocks, full_knot, round_blocks
    cdef public integer tokens_verified, num_blocks, partial
    cdef public bint is_logged, is_drafting
    cdef integer chunk_budget, num_microbatches
    cdef public double drained_s
    cdef public integer num_before_last
    cdef public integer queued_tokens
    cdef public double free_blocks, growing_blocks, growing_tokens, context_tokens
    cdef public integer num_finished
    cdef public object waiting
    cdef public Heap finishing, crossing
    cdef public list order, started, preempted, prefilled, prefilled_in, finished
    cdef public integer num_running, num_decoding, decode_tokens, prefill_tokens, fullest_tokens
    cdef public integer num_knots
    cdef public double pairs_s, pairs_slope_s, memory_s, memory_slope_s, compute_s, compute_slope_s
    cdef integer[::1] needing, knots_tokens
    cdef double[::1] memory_price_s, memory_slopes_s, compute_price_s, compute_slopes_s
    cdef double[::1] pairs_slopes_s, accepted_above
    cdef double tokens_per_step, steps_scv
    cdef Chance chance

    cdef void _take_prices(self, object costs) except *
    cdef void queue(self, integer number) except *
    @cython.locals(budget=integer, is_short=bint)
    cdef bint schedule(self, integer step, double now_s) except -1
    cdef integer steps_alike(self, integer step, integer most) except -1
    @cython.locals(size=integer, rounds=integer, phase=integer, blocks=integer)
    cpdef double decode_blocks(self, integer step, integer steps) except? -1
    @cython.locals(table=RequestTable, number=integer, computed=integer)
    cpdef double chunk_blocks(self, integer steps) except? -1
    @cython.locals(total=double, decoding=double, later=integer)
    cdef double taken_s(self, integer step, integer steps, double first_s, double more_s) except? -1
    @cython.locals(index=integer, lag_s=double)
    cdef void end(self, integer step, integer steps, double now_s, double last_s,
                  double prompts_s) except *
    @cython.locals(tokens=integer, shorter_s=double, stage_s=double, own_s=double, after_s=double)
    cdef double _lag_s(self, integer before, double now_s, double last_s,
                       double prompts_s) except? -1
    @cython.locals(state=integer)
    cpdef abort(self, integer number, integer step)
    @cython.locals(before=integer, number=integer)
    cdef bint _make_room(self, integer step) except -1
    cdef double _needed(self, integer step) except -1
    cdef void _forget_ended(self) except *
    @cython.locals(live=Heap, entry=integer)
    cdef Heap _live(self, Heap heap)
    @cython.locals(number=integer)
    cdef integer _newest(self) except -1
    @cython.locals(table=RequestTable)
    cdef void _preempt(self, integer number, integer step) except *
    @cython.locals(table=RequestTable, done=integer, rate=double, tokens=double, grown=integer,
                   each=double)
    cdef void _leave(self, integer number, integer step) except *
    @cython.locals(table=RequestTable, knot=integer, rate=double, beyond=double,
                   memory_slope_s=double, compute_slope_s=double)
    cdef void _price(self, integer number, double tokens, double sign) except *
    cdef void _free(self, integer number) except *
    @cython.locals(table=RequestTable, computed=integer, remaining=integer, blocks=integer)
    cdef double _blocks_each(self, integer number) except -1
    cdef integer _tables_of(self, integer number) except -1
    @cython.locals(table=RequestTable, phase=integer)
    cdef void _need(self, integer number, integer tables) except *
    @cython.locals(size=integer, blocks=integer, found=integer)
    cdef integer _blocks_for(self, integer tokens) except -1
    @cython.locals(table=RequestTable, number=integer, pending=integer, tokens=integer,
                   needed=double)
    cdef double _partial_need(self) except -1
    @cython.locals(table=RequestTable, computed=integer, pending=integer, tokens=integer,
                   needed=integer)
    cdef integer _prefill(self, integer number, integer budget) except -1
    @cython.locals(price_s=double, knot=integer, width=integer, beyond=double)
    cdef double _pairs_price_s(self, double earlier_tokens) except -1
    @cython.locals(table=RequestTable, decoding=double, number=integer, tokens=integer)
    cdef void _admit(self, integer step, double now_s, integer budget) except *
    @cython.locals(table=RequestTable, entry=integer, number=integer, last=integer, steps=integer)
    cdef integer _decodes_alike(self, integer step) except -1
    @cython.locals(table=RequestTable, number=integer, tokens=integer, computed=integer,
                   steps=integer, middle=double, knot=integer)
    cdef integer _chunks_alike(self) except -1
    @cython.locals(steps=integer, beyond=integer, tried=integer, taken=double)
    cdef integer _affordable(self, integer step, integer most) except -1
    @cython.locals(table=RequestTable, entry=integer, number=integer, is_live=bint, knot=integer,
                   rate=double, done=integer, tokens=double, beyond=double, more_s=double)
    cdef void _cross(self, integer step) except *
    @cython.locals(table=RequestTable, knot=integer, missing=double)
    cdef void _expect_knot(self, integer number, integer step, double tokens) except *
    @cython.locals(table=RequestTable, entry=integer, number=integer, is_live=bint)
    cdef void _finish(self, integer step, double now_s) except *
    cdef void _complete(self, integer number, double now_s) except *
    @cython.locals(table=RequestTable, remaining=integer, steps=integer, tokens=integer,
                   knot=integer)
    cdef void _first_token(self, integer number, integer step, double now_s, double lag_s) except *
    @cython.locals(steps=integer, most_steps=integer, fewest_steps=integer, most=double, drawn=double)
    cdef integer _steps_of(self, integer tokens) except -1
    @cython.locals(total=double, index=integer)
    cdef double _normal(self) except? -1
    @cython.locals(share=double, right=integer)
    cdef integer _accepted(self) except -1
