// The transports that faults are tried over.
#pragma once

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/transport/ucx/ucx_transport.h"
#include "tests/support/local_stack.h"

namespace baton::testing {

// Values of --transports; UCX where the build has it, on GPUs what carries their memory.
inline std::vector<std::string> Transports() {
  if (!TestGpus().empty()) {
    return {"grpc", "ipc", "nccl"};
  }
  std::vector<std::string> transports = {"grpc", "ipc"};
  if (transport::UcxTransport::available()) {
    transports.emplace_back("ucx");
  }
  return transports;
}

inline std::string TransportName(const ::testing::TestParamInfo<std::string>& instance) {
  return instance.param;
}

}  // namespace baton::testing
