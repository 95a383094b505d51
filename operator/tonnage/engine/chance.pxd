# C types of the random numbers, for when the module is compiled. Plain Python never reads this file.
cimport cython

cdef unsigned long long MASK, MULTIPLIER, SEED
cdef double SHARE


cdef class Chance:
    cdef public unsigned long long bits

    @cython.locals(bits='unsigned long long')
    cpdef double share(self)
    @cython.locals(index=Py_ssize_t, view='double[::1]')
    cpdef shares(self, Py_ssize_t count)
    @cython.locals(index=Py_ssize_t, other=Py_ssize_t, view='double[::1]')
    cpdef even_shares(self, Py_ssize_t count)
    @cython.locals(index=Py_ssize_t, view='double[::1]')
    cpdef gamma_gaps(self, Py_ssize_t count, double shape)
    @cython.locals(boost=double, d=double, c=double, x=double, v=double)
    cdef double _gamma(self, double shape)
    @cython.locals(x=double, y=double, square=double, scale=double)
    cdef double _normal(self)


@cython.locals(index=Py_ssize_t, length=double, view='long long[::1]', known='double[::1]')
cpdef lognormal(object normals, double mean, double sigma, double longest)
@cython.locals(index=Py_ssize_t, view='long long[::1]', known='double[::1]')
cpdef lengths(object values, double mean, double longest)
@cython.locals(index=Py_ssize_t, view='long long[::1]', others='long long[::1]')
cpdef cut(object lengths, object taken, long long most)
@cython.locals(index=Py_ssize_t, view='long long[::1]', known='long long[::1]')
cpdef parts(object lengths, double share)
@cython.locals(index=Py_ssize_t, view='double[::1]')
cpdef exponentials(object shares)
@cython.locals(index=Py_ssize_t, total=double, view='double[::1]')
cpdef passed(object gaps)
@cython.locals(index=Py_ssize_t, view='double[::1]')
cpdef scaled(object values, double factor)
