// Everything that is wrong with a request, in one answer.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace baton::router {

// One violation per field. Thread-compatible.
class FieldViolations {
 public:
  // `field` is its path in the request ("sampling.temperature"); `description` names the limit.
  void Add(std::string_view field, std::string_view description);

  bool empty() const { return violations_.empty(); }

  // OK when nothing was added, else kInvalidArgument: the message names the fields, a
  // google.rpc.BadRequest lists them.
  absl::Status ToStatus() const;

 private:
  std::vector<std::pair<std::string, std::string>> violations_;
};

}  // namespace baton::router
