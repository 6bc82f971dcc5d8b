// The journal's witness, and rows that it is held against: it is taken for damaged, or names a row; it is never ahead
// of rows that are accepted.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "glog/logging.h"
#include "server/store/journal_rows.h"
#include "server/store/journal_witness.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/scratch.h"

namespace stemma::fuzz {
namespace {

using server::JournalMark;
using server::JournalRows;

// Rows first+1 to first+count, behind a snapshot where they are not the first.
JournalRows MakeRows(uint64_t first, uint64_t count) {
  JournalRows rows;
  rows.before.n = first;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string body = std::to_string(i);
    rows.hashes.push_back(server::HashOfRow(rows.last(), first > 0 && i == 0, body));
    rows.entries.push_back({first + i + 1, body});
  }
  return rows;
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Written(const Scratch& scratch, const JournalMark& mark) {
  const std::string path = scratch.Write("last", "");
  auto witness = server::JournalWitness::Open(path);
  CHECK(witness.ok() && witness->Write(mark).ok());
  return path;
}

// The mark that the input begins with, of a number that rows of the test have, or nearly.
JournalMark MarkOf(std::string_view input) {
  JournalMark mark;
  if (input.empty()) return mark;
  mark.n = static_cast<unsigned char>(input[0]) % 16;
  const std::string_view hash = input.substr(1, mark.hash.size());
  std::copy(hash.begin(), hash.end(), mark.hash.begin());
  return mark;
}

// What CheckWitness has to say, from the rows themselves.
bool MayBe(const JournalRows& rows, const JournalMark& mark) {
  if (mark.n < rows.before.n) return true;
  if (mark.n == rows.before.n) return mark.hash == rows.before.hash;
  for (size_t i = 0; i < rows.entries.size(); ++i) {
    if (rows.entries[i].n == mark.n) return rows.hashes[i] == mark.hash;
  }
  return false;
}

}  // namespace

std::vector<std::string> Seeds() {
  const Scratch scratch;
  std::vector<std::string> seeds;
  for (const JournalRows& rows : {MakeRows(0, 0), MakeRows(0, 3), MakeRows(7, 2)}) {
    const JournalMark mark = rows.last();
    seeds.push_back(Bytes(Written(scratch, mark)));
    seeds.push_back(std::string(1, static_cast<char>(mark.n)) + mark.hash);
  }
  return seeds;
}

}  // namespace stemma::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stemma;
  static const fuzz::Scratch scratch;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto read = server::JournalWitness::Read(scratch.Write("last", input));
  CHECK(read.ok()) << read.status();
  if (read->has_value()) CHECK(fuzz::Bytes(fuzz::Written(scratch, **read)) == input);
  // A file that was written is read back, and held against rows.
  const server::JournalMark mark = fuzz::MarkOf(input);
  const auto again = server::JournalWitness::Read(fuzz::Written(scratch, mark));
  CHECK(again.ok() && again->has_value());
  CHECK_EQ((*again)->n, mark.n);
  CHECK((*again)->hash == mark.hash);
  for (const auto& rows : {fuzz::MakeRows(0, 0), fuzz::MakeRows(0, 3), fuzz::MakeRows(7, 2)}) {
    const absl::Status checked = server::CheckWitness(rows, **again, "journal.db");
    CHECK_EQ(checked.ok(), fuzz::MayBe(rows, mark)) << checked;
  }
  return 0;
}
