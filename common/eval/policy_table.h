// Results of several KV policies on the same cases, side by side.
#pragma once

#include <string>
#include <vector>

#include "common/eval/result_row.h"

namespace baton::eval {

// Two Markdown tables with one line per policy, in the order in which policies first appear.
//
// The first has the totals: correct answers; the net loss against dense, "L (a - b)", where a cases
// that dense answers are lost, b that it does not are gained, and L = a - b, over the cases that
// both have; resident KV bytes per prompt token, and as a share of bf16 dense pages without slack
// (kv_logical_bytes); slot buffer bytes per prompt token; attended tokens as a share of the prompt,
// mean over the rows that counted. The second has the share of correct answers by task
// and in all, one percentage per length bucket. "-" stands for what no row has.
std::string FormatPolicyTable(const std::vector<ResultRow>& rows);

}  // namespace baton::eval
