#include "tests/unit/repository/include_graph.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace baton::repository {
namespace {

constexpr std::array<std::string_view, 3> kCheckedTopLevel = {"kernels", "common", "services"};

// Libraries that are included with quotes; a quoted path that begins with anything else is taken
// for one of ours.
const std::set<std::string>& QuotedLibraries() {
  static const std::set<std::string> kLibraries = {"absl",
                                                   "benchmark",
                                                   "gmock",
                                                   "google",
                                                   "grpc",
                                                   "grpcpp",
                                                   "gtest",
                                                   "nlohmann",
                                                   "oneapi",
                                                   "prometheus",
                                                   "spdlog",
                                                   "unicode"};
  return kLibraries;
}

bool IsBelow(std::string_view path, std::string_view folder) {
  return path == folder || (path.size() > folder.size() &&
                            path.substr(0, folder.size()) == folder && path[folder.size()] == '/');
}

std::string FirstComponent(std::string_view path) {
  return std::string(path.substr(0, path.find('/')));
}

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool IsSource(const std::filesystem::path& path) {
  static const std::set<std::string> kExtensions = {".h", ".cc", ".cu", ".cuh"};
  return kExtensions.contains(path.extension().string());
}

std::string_view Trimmed(std::string_view text) {
  const size_t start = text.find_first_not_of(" \t");
  return start == std::string_view::npos ? std::string_view() : text.substr(start);
}

// What is wrong with one include of a file in `folder`, or "".
std::string Fault(const IncludeRules& rules, const std::string& folder, const Include& include) {
  const bool has_folder = include.path.find('/') != std::string::npos;
  const std::string first = FirstComponent(include.path);
  const bool is_library = !include.quoted || QuotedLibraries().contains(first);
  if (is_library) {
    const bool allowed = !has_folder || rules.MayUseLibrary(folder, first);
    return allowed ? "" : folder + " may not use the library of \"" + include.path + "\"";
  }
  if (!has_folder) {
    return "\"" + include.path + "\" does not carry its path from the root";
  }
  if (rules.FolderOf(include.path).empty()) {
    return "\"" + include.path + "\" is in no folder that allowed_includes.txt knows";
  }
  if (!rules.MayInclude(folder, include.path)) {
    return folder + " may not include \"" + include.path + "\"";
  }
  return "";
}

}  // namespace

IncludeRules IncludeRules::Parse(std::string_view text, std::vector<std::string>& errors) {
  IncludeRules parsed;
  std::istringstream stream{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    std::vector<std::string> words = Words(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    const bool library = words.front() == "libraries";
    if (library) words.erase(words.begin());
    if (words.size() < 2 || (words[1] != ":" && words[1] != "=") || (library && words[1] != "=")) {
      errors.push_back("line " + std::to_string(number) + ": not a rule: " + line);
      continue;
    }
    const std::vector<std::string> right(words.begin() + 2, words.end());
    if (library) {
      parsed.libraries_[words[0]].insert(right.begin(), right.end());
    } else {
      parsed.rules_[words[0]] = {.folders = right, .transitive = words[1] == ":"};
    }
  }
  return parsed;
}

std::string IncludeRules::FolderOf(std::string_view path) const {
  if (IsBelow(path, "proto")) return "proto";
  std::string longest;
  for (const auto& [folder, rule] : rules_) {
    if (IsBelow(path, folder) && folder.size() > longest.size()) longest = folder;
  }
  return longest;
}

std::set<std::string> IncludeRules::Reachable(const std::string& folder) const {
  std::set<std::string> reached;
  const auto own = rules_.find(folder);
  if (own == rules_.end()) return reached;
  std::vector<std::string> open = own->second.folders;
  while (!open.empty()) {
    const std::string next = open.back();
    open.pop_back();
    if (!reached.insert(next).second || !own->second.transitive) continue;
    for (const auto& [other, rule] : rules_) {
      const bool meant = rules_.contains(next) ? other == next : IsBelow(other, next);
      if (meant) open.insert(open.end(), rule.folders.begin(), rule.folders.end());
    }
  }
  return reached;
}

bool IncludeRules::MayInclude(const std::string& folder, std::string_view path) const {
  if (FolderOf(path) == folder) return true;
  const std::set<std::string> reached = Reachable(folder);
  return std::any_of(reached.begin(), reached.end(), [&](const std::string& allowed) {
    return rules_.contains(allowed) ? FolderOf(path) == allowed : IsBelow(path, allowed);
  });
}

bool IncludeRules::MayUseLibrary(std::string_view folder, const std::string& library) const {
  for (const auto& [limited, allowed] : libraries_) {
    if (IsBelow(folder, limited) && !allowed.contains(library)) return false;
  }
  return true;
}

std::vector<Include> FindIncludes(std::string_view text) {
  std::vector<Include> includes;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = Trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.front() != '#') continue;
    line = Trimmed(line.substr(1));
    if (line.substr(0, 7) != "include") continue;
    line = Trimmed(line.substr(7));
    if (line.empty() || (line.front() != '"' && line.front() != '<')) continue;
    const bool quoted = line.front() == '"';
    const size_t close = line.find(quoted ? '"' : '>', 1);
    if (close == std::string_view::npos) continue;
    includes.push_back({std::string(line.substr(1, close - 1)), number, quoted});
  }
  return includes;
}

std::vector<std::string> CheckFile(const IncludeRules& rules,
                                   const std::string& file,
                                   std::string_view text) {
  const std::string folder = rules.FolderOf(file);
  if (folder.empty()) {
    return {file + ":1: is in no folder that allowed_includes.txt knows"};
  }
  std::vector<std::string> breaches;
  for (const Include& include : FindIncludes(text)) {
    const std::string fault = Fault(rules, folder, include);
    if (!fault.empty()) {
      const std::string place = file + ":" + std::to_string(include.line);
      breaches.push_back(place + ": " + fault);
    }
  }
  return breaches;
}

std::vector<std::string> CheckTree(const IncludeRules& rules,
                                   const std::filesystem::path& root,
                                   int& files_seen) {
  files_seen = 0;
  std::vector<std::string> breaches;
  for (const std::string_view top : kCheckedTopLevel) {
    if (!std::filesystem::exists(root / top)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      ++files_seen;
      const std::string file = entry.path().lexically_relative(root).generic_string();
      for (const std::string& breach : CheckFile(rules, file, ReadText(entry.path()))) {
        breaches.push_back(breach);
      }
    }
  }
  std::sort(breaches.begin(), breaches.end());
  return breaches;
}

}  // namespace baton::repository
