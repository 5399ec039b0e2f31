#include "common/eval/result_writer.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ios>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/eval/result_row.h"

namespace baton::eval {
namespace {

absl::Status SystemError(const char* action, const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", action, " ", path, ": ", std::generic_category().message(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ResultWriter>> ResultWriter::Open(const std::string& path,
                                                                 bool resume) {
  auto writer = std::unique_ptr<ResultWriter>(new ResultWriter());
  writer->path_ = path;
  if (resume) {
    BATON_RETURN_IF_ERROR(writer->LoadExisting());
  }
  writer->file_.reset(std::fopen(path.c_str(), resume ? "ab" : "wb"));
  if (writer->file_ == nullptr) {
    return SystemError("write", path);
  }
  return writer;
}

absl::Status ResultWriter::LoadExisting() {
  std::ifstream file(path_, std::ios::binary);
  if (!file) {
    return absl::OkStatus();  // nothing to resume
  }
  std::string line;
  uintmax_t whole_lines_bytes = 0;
  for (int64_t number = 1; std::getline(file, line) && !file.eof(); ++number) {
    absl::StatusOr<ResultRow> row = ParseResultRow(line);
    if (!row.ok()) {
      return WithContext(row.status(), absl::StrCat(path_, " line ", number));
    }
    Remember(*std::move(row));
    whole_lines_bytes += line.size() + 1;
  }
  std::error_code error;
  std::filesystem::resize_file(path_, whole_lines_bytes, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot shorten ", path_, ": ", error.message()));
  }
  return absl::OkStatus();
}

void ResultWriter::Remember(ResultRow row) {
  finished_[row.id].insert(row.kv);
  rows_.push_back(std::move(row));
}

bool ResultWriter::Finished(const std::string& id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return finished_.count(id) > 0;
}

bool ResultWriter::Finished(const std::string& id, const std::string& kv) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = finished_.find(id);
  return it != finished_.end() && it->second.count(kv) > 0;
}

absl::Status ResultWriter::Append(const ResultRow& row) {
  const std::string line = ToJsonLine(row) + "\n";
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0) {
    return SystemError("write", path_);
  }
  Remember(row);
  return absl::OkStatus();
}

std::vector<ResultRow> ResultWriter::rows() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rows_;
}

}  // namespace baton::eval
