// The shape of the repository: what may lie at its top, and nothing in it that holds only on the
// machine of whoever wrote it.

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::repository {
namespace {

using ::testing::IsEmpty;

const std::set<std::string>& AllowedTopLevel() {
  static const std::set<std::string> kEntries = {"proto",
                                                 "services",
                                                 "common",
                                                 "kernels",
                                                 "deploy",
                                                 "docker",
                                                 "tests",
                                                 "docs",
                                                 "training",
                                                 "CMakeLists.txt",
                                                 "CMakePresets.json",
                                                 "README.md",
                                                 "LICENSE",
                                                 ".ci",
                                                 ".gitignore",
                                                 ".clang-format",
                                                 ".clang-tidy"};
  return kEntries;
}

// The files that git tracks or would add, from the root. Empty where this is no git checkout.
std::vector<std::string> RepositoryFiles() {
  // Whoever owns the checkout may differ from whoever runs the tests (containers).
  const std::string command = "git -c safe.directory='*' -C '" + std::string(BATON_SOURCE_DIR) +
                              "' ls-files -z --cached --others --exclude-standard 2>/dev/null";
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::array<char, 4096> buffer;
  for (size_t size = 0; (size = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.append(buffer.data(), size);
  }
  if (pclose(pipe) != 0) return {};
  std::vector<std::string> files;
  for (size_t start = 0; start < output.size();) {
    const size_t end = std::min(output.find('\0', start), output.size());
    files.push_back(output.substr(start, end - start));
    start = end + 1;
  }
  return files;
}

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool IsBinary(const std::string& text) { return text.find('\0') != std::string::npos; }

// Folders in which people and build machines keep checkouts. Written in two parts each, so that
// this file does not find itself.
constexpr std::array<std::string_view, 6> kMachineFolders = {
    "/ho"
    "me/",
    "/Us"
    "ers/",
    "/wo"
    "rk/",
    "/ro"
    "ot/",
    "/wo"
    "rkspace/",
    "/m"
    "nt/"};

// Whether an absolute path could begin behind `c`; a word or a variable there makes it relative.
bool EndsAPath(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) == 0 &&
         std::string_view("_.-/}*)~").find(c) == std::string_view::npos;
}

// The first line of `text` with a path of a development machine, from 1; 0 if there is none.
int LineWithMachinePath(std::string_view text) {
  for (const std::string_view folder : kMachineFolders) {
    for (size_t at = text.find(folder); at != std::string_view::npos;
         at = text.find(folder, at + 1)) {
      if (at > 0 && !EndsAPath(text[at - 1])) continue;
      const auto end = text.begin() + static_cast<std::ptrdiff_t>(at);
      return 1 + static_cast<int>(std::count(text.begin(), end, '\n'));
    }
  }
  return 0;
}

std::vector<std::string> StrangersAtTheTop(const std::vector<std::string>& files) {
  std::set<std::string> strangers;
  for (const std::string& file : files) {
    const std::string top = file.substr(0, file.find('/'));
    if (!AllowedTopLevel().contains(top)) strangers.insert(top);
  }
  return {strangers.begin(), strangers.end()};
}

TEST(TreeTest, HasOnlyTheAgreedEntriesAtTheTop) {
  const std::vector<std::string> files = RepositoryFiles();
  if (files.empty()) GTEST_SKIP() << "not a git checkout: what belongs to the tree is unknown";
  EXPECT_THAT(StrangersAtTheTop(files), IsEmpty())
      << "move these below an agreed entry, or add them to .gitignore if they are produced";
}

TEST(TreeTest, NamesNoFolderOfADevelopmentMachine) {
  const std::vector<std::string> files = RepositoryFiles();
  if (files.empty()) GTEST_SKIP() << "not a git checkout: what belongs to the tree is unknown";
  for (const std::string& file : files) {
    const std::filesystem::path path = std::filesystem::path(BATON_SOURCE_DIR) / file;
    if (!std::filesystem::is_regular_file(path)) continue;
    const std::string text = ReadText(path);
    if (IsBinary(text)) continue;
    const int line = LineWithMachinePath(text);
    EXPECT_EQ(line, 0) << file << ":" << line << ": an absolute path of a development machine";
    EXPECT_EQ(LineWithMachinePath("/" + file), 0) << file << ": named after such a path";
  }
}

TEST(TreeTest, FindsAPlantedStrangerAndAPlantedPath) {
  EXPECT_THAT(StrangersAtTheTop({"common/base/check.h", "scratch/notes.md", "LICENSE"}),
              ::testing::ElementsAre("scratch"));
  const std::string folder(kMachineFolders[0]);
  EXPECT_EQ(LineWithMachinePath("one\nsee " + folder + "someone/baton\n"), 2);
  EXPECT_EQ(LineWithMachinePath("\"" + folder + "someone\""), 1);
  EXPECT_EQ(LineWithMachinePath("$checkout" + folder + "x and docs" + folder), 0);
}

}  // namespace
}  // namespace baton::repository
