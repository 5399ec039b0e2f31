#include "common/checkpoint/safetensors_file.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/stored_dtype.h"

namespace baton::checkpoint {
namespace {

// A file that small can't be a model, but may be what a checkout leaves in its place.
constexpr size_t kMaxPlaceholderBytes = 1024;

// Says what a small text file in the place of a model really is; empty when it is none of those.
std::string DescribePlaceholder(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > kMaxPlaceholderBytes) {
    return "";
  }
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if ((code < 0x20 && c != '\n' && c != '\r') || code == 0x7f) {
      return "";
    }
  }
  if (text.substr(0, 8) == "version ") {
    return "is a large-file pointer, not the file; fetch it (git lfs pull)";
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  constexpr std::string_view kSuffix = ".safetensors";
  if (text.size() >= kSuffix.size() && text.substr(text.size() - kSuffix.size()) == kSuffix) {
    return absl::StrCat("is a symbolic link to \"",
                        std::string(text),
                        "\" that was checked out as a text file; check out with symbolic links "
                        "(git config core.symlinks true) or copy that file here");
  }
  return "";
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile result;
  result.path_ = path;
  BATON_ASSIGN_OR_RETURN(result.file_, MappedFile::Open(path));
  const std::string placeholder = DescribePlaceholder(result.file_.bytes());
  if (!placeholder.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " ", placeholder));
  }
  absl::StatusOr<std::vector<SafetensorsEntry>> entries =
      ParseSafetensorsHeader(result.file_.bytes());
  if (!entries.ok()) {
    return WithContext(entries.status(), path);
  }
  for (SafetensorsEntry& entry : *entries) {
    std::string name = entry.name;
    result.entries_.emplace(std::move(name), std::move(entry));
  }
  return result;
}

std::vector<std::string> SafetensorsFile::Names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) {
    names.push_back(name);
  }
  return names;
}

const SafetensorsEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

absl::StatusOr<TensorView> SafetensorsFile::View(std::string_view name) const {
  const SafetensorsEntry* entry = Find(name);
  if (entry == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("tensor `", std::string(name), "` is missing in ", path_));
  }
  const std::optional<kernels::DType> dtype = ReadableDType(entry->dtype_name);
  if (!dtype.has_value()) {
    return absl::UnimplementedError(absl::StrCat("tensor `",
                                                 entry->name,
                                                 "` in ",
                                                 path_,
                                                 " has dtype ",
                                                 entry->dtype_name,
                                                 ", which can't be read"));
  }
  TensorView view;
  view.dtype = *dtype;
  view.shape = entry->shape;
  view.bytes = file_.bytes().subspan(static_cast<size_t>(entry->begin),
                                     static_cast<size_t>(entry->end - entry->begin));
  return view;
}

}  // namespace baton::checkpoint
