// A row of results.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton::model {

// One JSON object on a line of its own; fields in the order in which they are added. Keys are
// literals that need no escapes.
class ModelRow {
 public:
  // The fields "bench" and "model".
  ModelRow(const std::string& bench, const std::string& model);

  ModelRow& Add(std::string_view key, const std::string& text);
  ModelRow& Add(std::string_view key, int64_t number);
  // With so many digits behind the point.
  ModelRow& Add(std::string_view key, double number, int digits);
  // Prints the row at once.
  void Print() const;
  // Prints it with the reason as "failed", if there is one. Whether there was none.
  bool Print(const absl::Status& status);

 private:
  std::string fields_;
};

}  // namespace baton::model
