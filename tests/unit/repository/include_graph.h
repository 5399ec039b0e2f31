// The include graph of the source tree and the rules it has to keep: which folder may include which
// (architecture.md section 2). Used by include_graph_test.cc.
#ifndef TESTS_UNIT_REPOSITORY_INCLUDE_GRAPH_H_
#define TESTS_UNIT_REPOSITORY_INCLUDE_GRAPH_H_

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace baton::repository {

// The rules of allowed_includes.txt (its head describes the format). Immutable after Parse.
class IncludeRules {
 public:
  // Reads the text of a rules file. Lines that it does not understand are listed in `errors`, with
  // their line numbers.
  static IncludeRules Parse(std::string_view text, std::vector<std::string>& errors);

  // The folder of the rules that `path` (from the root, '/'-separated) belongs to: the longest
  // entry that it begins with, or "" if there is none. proto/ is always known, as "proto".
  std::string FolderOf(std::string_view path) const;

  // Whether a file of `folder` may include `path`; both are known folders' (see FolderOf).
  bool MayInclude(const std::string& folder, std::string_view path) const;

  // Whether a file of `folder` may include a header of the library whose include path begins with
  // `library` ("absl", "grpcpp", ...).
  bool MayUseLibrary(std::string_view folder, const std::string& library) const;

 private:
  struct Rule {
    std::vector<std::string> folders;
    bool transitive = false;
  };

  // All entries that `folder` may include, with what they rest on where the rule says so.
  std::set<std::string> Reachable(const std::string& folder) const;

  std::map<std::string, Rule> rules_;
  std::map<std::string, std::set<std::string>> libraries_;
};

// One #include line.
struct Include {
  std::string path;
  int line = 0;         // from 1
  bool quoted = false;  // "..." rather than <...>
};

// The #include lines of a source text, in order; macros as operands are left out.
std::vector<Include> FindIncludes(std::string_view text);

// The breaches of `rules` by one source file, each as "file:line: what is wrong". `file` is its
// path from the root.
std::vector<std::string> CheckFile(const IncludeRules& rules,
                                   const std::string& file,
                                   std::string_view text);

// The same for every .h, .cc, .cu and .cuh file below kernels/, common/ and services/ of `root`.
// `files_seen` receives their number.
std::vector<std::string> CheckTree(const IncludeRules& rules,
                                   const std::filesystem::path& root,
                                   int& files_seen);

}  // namespace baton::repository

#endif  // TESTS_UNIT_REPOSITORY_INCLUDE_GRAPH_H_
