// A row is all that a setting needs: its field, its default, its parsing and its checks come from there.
#include "base/settings.h"

#include <gtest/gtest.h>

#include <string>

namespace annulus {
namespace {

enum class Shape { kRound, kSquare };
constexpr const char* kShapes[] = {"round", "square"};

struct Values : SettingValues {
#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "tests/base/settings_test_rows.inc"
#undef ANNULUS_SETTING
};

constexpr Setting kRows[] = {
#define ANNULUS_SETTING(name, Type, unset, variable, allowed, ranks, help) \
  MakeSetting<Values, &Values::name>(#name, variable, unset, allowed, ranks, help),
#include "tests/base/settings_test_rows.inc"
#undef ANNULUS_SETTING
};

constexpr const Setting& kDepth = kRows[0];
constexpr const Setting& kFast = kRows[1];
constexpr const Setting& kShape = kRows[2];
constexpr const Setting& kTitle = kRows[3];

TEST(SettingRow, GivesTheFieldItsDefault) {
  const Values values;
  EXPECT_EQ(values.depth, 0);
  EXPECT_EQ(values.title, "none");
  const std::string defaults[] = {"0", "0", "round", "none"};
  for (size_t i = 0; i < std::size(kRows); ++i) {
    EXPECT_EQ(DefaultText(kRows[i]), defaults[i]);
    EXPECT_EQ(ValueText(kRows[i], values), defaults[i]);
    EXPECT_TRUE(CheckValue(kRows[i], values).ok());
  }
}

TEST(SettingRow, GivesTheWayFromTextToTheField) {
  Values values;
  const char* texts[] = {"7", "1", "square", "other"};
  for (size_t i = 0; i < std::size(kRows); ++i) {
    ASSERT_TRUE(SetFromText(kRows[i], "it", texts[i], &values).ok());
    EXPECT_EQ(ValueText(kRows[i], values), texts[i]);
  }
  EXPECT_EQ(values.depth, 7);
  EXPECT_TRUE(values.fast);
  EXPECT_EQ(values.shape, Shape::kSquare);
  EXPECT_EQ(values.title, "other");
}

TEST(SettingRow, RefusesWhatItDoesNotAllow) {
  Values values;
  EXPECT_EQ(SetFromText(kDepth, "X_DEPTH", "2", &values).message(),
            "X_DEPTH is \"2\"; allowed: 0, or a whole number from 3 to 9");
  EXPECT_EQ(SetFromNumber(kDepth, FullName(kDepth), 10, &values).message(),
            "depth (X_DEPTH) is \"10\"; allowed: 0, or a whole number from 3 to 9");
  EXPECT_EQ(SetFromNumber(kFast, "X_FAST", 2, &values).message(), "X_FAST is \"2\"; allowed: 0 or 1");
  EXPECT_EQ(SetFromText(kShape, "X_SHAPE", "1", &values).message(), "X_SHAPE is \"1\"; allowed: round or square");
  EXPECT_EQ(SetFromText(kTitle, "X_TITLE", "longer", &values).message(),
            "X_TITLE is \"longer\"; allowed: at most 5 characters");
  for (const Setting& row : kRows) EXPECT_EQ(ValueText(row, values), DefaultText(row));
}

TEST(SettingRow, MakesItsVariableKnown) {
  const char* environment[] = {"X_SHAP=round", "X_DEPTH=1", "X_OTHER=1", "X_LEFT=1", nullptr};
  const char* others[] = {"X_LEFT"};
  const std::vector<std::string> expected = {"X_OTHER", "X_SHAP (is X_SHAPE meant?)"};
  EXPECT_EQ(UnknownVariables("X_", kRows, others, environment), expected);
}

}  // namespace
}  // namespace annulus
