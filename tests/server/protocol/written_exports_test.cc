// What is kept of the exports that a server has written.
#include "server/protocol/written_exports.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using server::WrittenExports;
using Facts = std::map<std::string, std::string>;

TEST(WrittenExportsTest, AnExportHasTheFactsOfItsWeights) {
  WrittenExports written;
  written.Add({.name = "a", .lineage = "L1", .step = 3, .dtype = "float32"});
  EXPECT_EQ(written.FactsOf("a"), (Facts{{"lineage", "L1"}, {"step", "3"}, {"dtype", "float32"}}));
  EXPECT_EQ(written.FactsOf("b"), Facts());
}

TEST(WrittenExportsTest, ALaterOneOfTheNameTakesItsPlace) {
  WrittenExports written;
  written.Add({.name = "a", .lineage = "L1", .step = 3, .dtype = ""});
  written.Add({.name = "b", .lineage = "L1", .step = 3, .dtype = ""});
  written.Add({.name = "a", .lineage = "L1", .step = 4, .dtype = ""});
  EXPECT_EQ(written.FactsOf("a").at("step"), "4");
  EXPECT_EQ(written.FactsOf("b").at("step"), "3");
}

TEST(WrittenExportsTest, TheOldestAreForgotten) {
  WrittenExports written;
  for (size_t i = 0; i <= WrittenExports::kKept; ++i)
    written.Add({.name = absl::StrCat(i), .lineage = "L1", .step = i, .dtype = ""});
  EXPECT_EQ(written.FactsOf("0"), Facts());
  EXPECT_EQ(written.FactsOf("1").at("step"), "1");
}

}  // namespace
}  // namespace stemma::testing
