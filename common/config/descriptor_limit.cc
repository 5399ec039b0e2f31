#include "common/config/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace baton::config {

void RaiseDescriptorLimit(rlim_t enough) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough) {
    return;
  }
  limit.rlim_cur = std::min(limit.rlim_max, enough);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace baton::config
