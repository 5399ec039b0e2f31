// The result file of an evaluation run.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"

#include "common/eval/result_row.h"

namespace baton::eval {

// Appends rows to a JSONL file, each flushed at once, so that an interrupted run loses nothing that
// was finished. Thread-safe.
class ResultWriter {
 public:
  // Without `resume` the file is replaced. With it, rows already there are kept and count as
  // finished; a last line cut off by an interruption is removed. kInvalidArgument names a line that
  // is no result row, kFailedPrecondition a path that can't be written.
  static absl::StatusOr<std::unique_ptr<ResultWriter>> Open(const std::string& path, bool resume);

  // True for cases with a row, from this run or a resumed one.
  bool Finished(const std::string& id) const;
  // The same for one KV policy of a case.
  bool Finished(const std::string& id, const std::string& kv) const;

  // Writes one row; the status says when the disk is full.
  absl::Status Append(const ResultRow& row);

  // All rows so far, resumed ones first.
  std::vector<ResultRow> rows() const;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  ResultWriter() = default;
  absl::Status LoadExisting();
  void Remember(ResultRow row);

  std::string path_;
  mutable std::mutex mutex_;  // guards everything below
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<ResultRow> rows_;
  std::unordered_map<std::string, std::unordered_set<std::string>> finished_;  // policies by id
};

}  // namespace baton::eval
