# C types of the columns, for when the module is compiled. Plain Python never reads this file.
cimport cython


cdef class RequestTable:
    cdef public Py_ssize_t size, capacity
    cdef public list free
    cdef public long long[::1] prompt_tokens
    cdef public long long[::1] output_tokens
    cdef public long long[::1] cached_tokens
    cdef public double[::1] arrival_s
    cdef public long long[::1] state
    cdef public long long[::1] emitted
    cdef public long long[::1] computed
    cdef public double[::1] blocks
    cdef public double[::1] rate
    cdef public long long[::1] start_step
    cdef public long long[::1] finish_step
    cdef public long long[::1] knot
    cdef public long long[::1] knot_step
    cdef public long long[::1] preemptions
    cdef public double[::1] started_s
    cdef public double[::1] first_token_s
    cdef public double[::1] lag_s
    cdef public double[::1] ended_s

    cdef void _grow(self) except *
    @cython.locals(number=Py_ssize_t, late=Py_ssize_t)
    cpdef Py_ssize_t late_starts(self, Py_ssize_t first, Py_ssize_t last, double limit_s)
    @cython.locals(number=Py_ssize_t, slow=Py_ssize_t, later='long long')
    cpdef Py_ssize_t slow_outputs(self, Py_ssize_t first, Py_ssize_t last, double limit_s)
    @cython.locals(number=Py_ssize_t, later='long long')
    cpdef latencies_s(self, object numbers)
    @cython.locals(count=Py_ssize_t, index=Py_ssize_t, number=Py_ssize_t, later='long long',
                   starts_s='double[::1]', gaps_s='double[::1]')
    cpdef spread_s(self, Py_ssize_t first, Py_ssize_t last, object quantiles)
    @cython.locals(number=Py_ssize_t, total='long long')
    cpdef long long num_preempted(self)
    @cython.locals(number=Py_ssize_t, total_s=double)
    cpdef double wait_s(self, Py_ssize_t first, Py_ssize_t last)


@cython.locals(low=Py_ssize_t, high=Py_ssize_t, left=Py_ssize_t, right=Py_ssize_t, pivot=double)
cdef double _value_at(double[::1] values, Py_ssize_t place) except? -1
