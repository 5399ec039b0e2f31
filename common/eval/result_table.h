// Results by task and length.
#pragma once

#include <string>
#include <vector>

#include "common/eval/result_row.h"

namespace baton::eval {

// A text table: one line per task, one column per length bucket, cells "correct/cases", sums in the
// last line and column.
std::string FormatTable(const std::vector<ResultRow>& rows);

}  // namespace baton::eval
