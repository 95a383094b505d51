# C types of the router, for when the module is compiled. Plain Python never reads this file.
cimport cython

from tonnage.engine.core cimport Engine
from tonnage.engine.table cimport RequestTable


@cython.locals(num_engines=Py_ssize_t, number=Py_ssize_t, arrival_s=double, chosen=Py_ssize_t,
               engine=Engine, rank='long long', is_pooled=bint)
cpdef serve(list engines, RequestTable table, object routing, object draws)


@cython.locals(number='long long')
cpdef send(Engine engine, RequestTable table, long long first, long long last)


@cython.locals(sent='long long', number='long long', outstanding='long long')
cpdef serve_users(Engine engine, RequestTable table, long long num_users)


@cython.locals(fewest='long long', ties='long long', outstanding='long long', left='long long',
               engine=Engine, index=Py_ssize_t)
cdef Py_ssize_t _least_outstanding(list engines, double at_s, double draw) except -1
