// Results of several KV policies on the same cases, side by side.
#pragma once

#include <string>
#include <vector>

#include "common/eval/result_row.h"

namespace baton::eval {

// Markdown tables with one line per policy, in the order in which policies first appear; "-" stands
// for what no row has.
//
// Totals: correct answers; the net loss against dense, "L (a - b)", where a cases that dense
// answers are lost, b that it does not are gained, and L = a - b, over the cases that both have,
// and the largest net loss of a task; resident KV bytes per prompt token, and in % of bf16 keys and
// values without page slack (kv_logical_bytes); wire bytes in % of the same; slot buffer bytes per
// prompt token; attended tokens in % of the prompt and selected chunks that the step before had
// selected too in %, means over the rows that counted.
// By length: correct answers, bytes, wire bytes and attended tokens as above.
// By task and length: correct answers in %.
// By layer, where a policy stores tokens in two precisions: high, low and dropped tokens in %, and
// the 5th and 95th percentile of a KV head's high tokens over heads and cases.
std::string FormatPolicyTable(const std::vector<ResultRow>& rows);

}  // namespace baton::eval
