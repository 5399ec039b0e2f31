// BATON_CHECK: a broken invariant of our own ends the process. Never for outside input.
#pragma once

#include <cstdio>
#include <cstdlib>

#define BATON_CHECK(condition)                                                               \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
