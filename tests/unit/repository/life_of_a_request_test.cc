// docs/life-of-a-request.md names a file and a function for every step of a request's way, in rows
// of the form | step | `path/to/file.cc` | `Function` |. This keeps the page true.

#include <cctype>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::repository {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kFewestSteps = 8;

struct Step {
  std::string name;
  std::string file;
  std::string function;
  int line = 0;  // of the page, from 1
};

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<std::string> Cells(const std::string& row) {
  std::vector<std::string> cells;
  std::istringstream stream(row.substr(1));
  for (std::string cell; std::getline(stream, cell, '|');) {
    const size_t first = cell.find_first_not_of(" \t\r");
    const size_t last = cell.find_last_not_of(" \t\r");
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
  }
  return cells;
}

// The text between backticks if the whole cell is so quoted, else "".
std::string Code(const std::string& cell) {
  const bool quoted = cell.size() > 2 && cell.front() == '`' && cell.back() == '`';
  return quoted ? cell.substr(1, cell.size() - 2) : "";
}

// The rows whose second and third cells are code; the heading and other tables are not such rows.
std::vector<Step> ParseSteps(const std::string& page) {
  std::vector<Step> steps;
  std::istringstream stream(page);
  std::string row;
  for (int line = 1; std::getline(stream, row); ++line) {
    if (row.empty() || row.front() != '|') continue;
    const std::vector<std::string> cells = Cells(row);
    if (cells.size() < 3) continue;
    const Step step{cells[0], Code(cells[1]), Code(cells[2]), line};
    if (!step.file.empty() && !step.function.empty()) steps.push_back(step);
  }
  return steps;
}

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether `text` has the word `name` with an opening parenthesis behind it.
bool HasFunction(std::string_view text, std::string_view name) {
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool starts = at == 0 || !IsWord(text[at - 1]);
    if (starts && end < text.size() && text[end] == '(') return true;
  }
  return false;
}

// `Class::Function` is found if the file names the class and has the function.
bool HasQualifiedFunction(std::string_view text, std::string name) {
  if (name.size() > 2 && name.substr(name.size() - 2) == "()") name.resize(name.size() - 2);
  const size_t colons = name.rfind("::");
  if (colons == std::string::npos) return HasFunction(text, name);
  const std::string scope = name.substr(0, colons);
  return text.find(scope) != std::string_view::npos && HasFunction(text, name.substr(colons + 2));
}

// What is wrong with the page, as "line N: ...".
std::vector<std::string> Faults(const std::string& page, const std::filesystem::path& root) {
  const std::vector<Step> steps = ParseSteps(page);
  std::vector<std::string> faults;
  if (steps.size() < kFewestSteps) {
    faults.push_back("the page has " + std::to_string(steps.size()) + " steps, not " +
                     std::to_string(kFewestSteps) + " or more");
  }
  for (const Step& step : steps) {
    const std::string where = "line " + std::to_string(step.line) + ": ";
    if (!std::filesystem::is_regular_file(root / step.file)) {
      faults.push_back(where + "no file " + step.file);
    } else if (!HasQualifiedFunction(ReadText(root / step.file), step.function)) {
      faults.push_back(where + step.file + " has no function " + step.function);
    }
  }
  return faults;
}

TEST(LifeOfARequestTest, EveryStepNamesAFunctionThatExists) {
  const std::filesystem::path root = BATON_SOURCE_DIR;
  const std::string page = ReadText(root / "docs" / "life-of-a-request.md");
  ASSERT_FALSE(page.empty()) << "docs/life-of-a-request.md is missing";
  for (const std::string& fault : Faults(page, root)) {
    ADD_FAILURE() << "docs/life-of-a-request.md " << fault;
  }
}

TEST(LifeOfARequestTest, ReadsRowsOfStepFileAndFunction) {
  const std::vector<Step> steps = ParseSteps(
      "| step | file | function |\n|---|---|---|\n"
      "| 1. Admit | `services/router/admit.cc` | `Queue::Admit` |\n");
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].name, "1. Admit");
  EXPECT_EQ(steps[0].file, "services/router/admit.cc");
  EXPECT_EQ(steps[0].function, "Queue::Admit");
  EXPECT_EQ(steps[0].line, 3);
}

TEST(LifeOfARequestTest, FindsAMissingFileAMissingFunctionAndTooFewSteps) {
  const std::string page =
      "| 1 | `no/such/file.cc` | `Reserve` |\n"
      "| 2 | `tests/unit/repository/life_of_a_request_test.cc` | `Nowhere` |\n"
      "| 3 | `tests/unit/repository/life_of_a_request_test.cc` | `ParseSteps` |\n";
  EXPECT_THAT(
      Faults(page, BATON_SOURCE_DIR),
      ElementsAre(HasSubstr("3 steps"),
                  "line 1: no file no/such/file.cc",
                  HasSubstr("line 2: tests/unit/repository/life_of_a_request_test.cc has no")));
}

TEST(LifeOfARequestTest, TakesAWholeWordWithItsParenthesisForAFunction) {
  EXPECT_TRUE(HasQualifiedFunction("absl::Status Pool::Reserve(int n) {", "Pool::Reserve"));
  EXPECT_TRUE(HasQualifiedFunction("absl::Status Reserve(int n) {", "Reserve()"));
  EXPECT_FALSE(HasQualifiedFunction("PreReserve(1); Reserved(2); // Reserve", "Reserve"));
  EXPECT_FALSE(HasQualifiedFunction("absl::Status Reserve(int n) {", "Pool::Reserve"));
}

}  // namespace
}  // namespace baton::repository
