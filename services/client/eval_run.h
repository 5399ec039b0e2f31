// Evaluation cases through the router, several at once.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/eval/eval_case.h"
#include "common/eval/result_writer.h"
#include "services/client/connection.h"

namespace baton::client {

struct EvalOptions {
  std::string model;
  std::string kv_policy;
  bool sessions = false;  // the server keeps KV between the turns of a conversation
  int concurrency = 1;
};

// Runs every case that `writer` has no row of, and the turns that follow it, greedily, and appends
// the rows. A request that is
// refused with a delay is sent again after it. The first error that stays ends the run; rows that
// were written stay.
absl::Status RunCases(const std::vector<eval::EvalCase>& cases,
                      const EvalOptions& options,
                      Connection& connection,
                      eval::ResultWriter& writer);

}  // namespace baton::client
