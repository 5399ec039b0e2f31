// A request's accounting as a table.
#pragma once

#include <string>

#include "services/client/generation.h"

namespace baton::client {

// One line per figure: tokens, times, KV bytes logical, on the wire and resident, transport,
// retries.
std::string AccountingTable(const Generation& generation);

}  // namespace baton::client
