#include "tests/gpu/bench/model_row.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace baton::model {

ModelRow::ModelRow(const std::string& bench, const std::string& model) {
  Add("bench", bench);
  Add("model", model);
}

ModelRow& ModelRow::Add(std::string_view key, const std::string& text) {
  absl::StrAppendFormat(&fields_,
                        "%s\"%s\":\"%s\"",
                        fields_.empty() ? "" : ",",
                        key,
                        absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", " "}}));
  return *this;
}

ModelRow& ModelRow::Add(std::string_view key, int64_t number) {
  absl::StrAppendFormat(&fields_, ",\"%s\":%d", key, number);
  return *this;
}

ModelRow& ModelRow::Add(std::string_view key, double number, int digits) {
  absl::StrAppendFormat(&fields_, ",\"%s\":%.*f", key, digits, number);
  return *this;
}

void ModelRow::Print() const {
  absl::PrintF("{%s}\n", fields_);
  std::fflush(stdout);
}

bool ModelRow::Print(const absl::Status& status) {
  if (!status.ok()) {
    Add("failed", status.ToString());
  }
  Print();
  return status.ok();
}

}  // namespace baton::model
