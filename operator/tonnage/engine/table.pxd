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
    cdef public double[::1] ended_s

    cdef void _grow(self) except *
    @cython.locals(number=Py_ssize_t, late=Py_ssize_t)
    cpdef Py_ssize_t late_starts(self, Py_ssize_t first, Py_ssize_t last, double limit_s)
    @cython.locals(number=Py_ssize_t, slow=Py_ssize_t, later='long long')
    cpdef Py_ssize_t slow_outputs(self, Py_ssize_t first, Py_ssize_t last, double limit_s)
    @cython.locals(number=Py_ssize_t, total_s=double)
    cpdef double wait_s(self, Py_ssize_t first, Py_ssize_t last)
