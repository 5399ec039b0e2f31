// Requests one by one, for other tools.
#pragma once

#include <ostream>
#include <vector>

#include "nlohmann/json.hpp"

#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {

// The fields of docs/load-testing.md; with `token_times` also when each message came and how many
// tokens it had.
nlohmann::ordered_json RecordJson(const RequestRecord& record, bool token_times);

// One JSON object per line, in the order of sending.
void WriteJsonLines(const std::vector<RequestRecord>& records, bool token_times, std::ostream& out);

// A header and one line per request with the same fields except token times (RFC 4180).
void WriteCsv(const std::vector<RequestRecord>& records, std::ostream& out);

}  // namespace baton::loadtest
