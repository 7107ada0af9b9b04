// docs/tuning.md lists exactly the settings that exist, with the defaults and the ranges that the code applies.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "collectives/core/options.h"

namespace annulus {
namespace {

struct Row {
  std::string default_text;
  std::string allowed;
  std::string meaning;
};

std::string Trim(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// The table's rows by variable: "| `ANNULUS_X` | default | allowed | meaning |".
std::map<std::string, Row> ReadRows() {
  std::ifstream document("docs/tuning.md");
  EXPECT_TRUE(document.good());
  std::map<std::string, Row> rows;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("| `ANNULUS_")) continue;
    std::istringstream parts(line);
    std::vector<std::string> cells;
    for (std::string cell; std::getline(parts, cell, '|');) cells.push_back(Trim(cell));
    EXPECT_EQ(cells.size(), 5u) << line;
    if (cells.size() != 5) continue;
    const std::string variable = cells[1].substr(1, cells[1].size() - 2);
    EXPECT_TRUE(rows.insert({variable, {cells[2], cells[3], cells[4]}}).second) << variable << " is listed twice";
  }
  return rows;
}

TEST(TuningDocument, ListsEverySettingAsTheCodeHasIt) {
  std::map<std::string, Row> rows = ReadRows();
  for (const Setting& setting : Settings()) {
    ASSERT_TRUE(rows.contains(setting.variable)) << setting.variable;
    const Row& row = rows[setting.variable];
    EXPECT_EQ(row.default_text, DefaultText(setting)) << setting.variable;
    EXPECT_EQ(row.allowed, AllowedText(setting)) << setting.variable;
    EXPECT_NE(row.meaning, "") << setting.variable;
    const bool must_agree = row.meaning.ends_with("Must agree on all ranks.");
    EXPECT_EQ(must_agree, setting.ranks == Ranks::kMustAgree) << setting.variable;
  }
}

TEST(TuningDocument, ListsNothingElse) {
  std::map<std::string, Row> rows = ReadRows();
  for (const Setting& setting : Settings()) rows.erase(setting.variable);
  for (const auto& [variable, row] : rows) ADD_FAILURE() << variable << " is listed but does not exist";
}

}  // namespace
}  // namespace annulus
