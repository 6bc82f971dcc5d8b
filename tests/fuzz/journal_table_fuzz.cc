// The table of rows in journal.db, which anything may have written: it is refused, or its rows count up without a gap
// and each names the hash of the one before.
//
// An input is a list of rows of 3 bytes and a body: what is odd about the row, the number that it has too much (from
// -100), and the length of its body. A row that has nothing odd follows the one before it.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glog/logging.h"
#include "server/store/database.h"
#include "server/store/journal_rows.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/scratch.h"

namespace stemma::fuzz {
namespace {

using server::JournalMark;

// What is odd about a row; the others of the 8 bits are its column, and the column's type.
constexpr unsigned kNumber = 1, kSnapshot = 2, kPrevious = 4, kHash = 8, kType = 16;
constexpr char kTable[] = "CREATE TABLE rows(n, snapshot, body, previous, hash)";

// A table whose columns take any type: the product's own converts some.
class Table {
 public:
  Table() : path_(scratch_.Write("journal.db", "")) {
    auto database = server::Database::Open(path_);
    CHECK(database.ok()) << database.status();
    database_.emplace(*std::move(database));
    CHECK_EQ(*database_->Text("PRAGMA journal_mode=WAL"), "wal");
    CHECK(database_->Execute(kTable).ok());
  }

  void Fill(std::string_view input) {
    CHECK(database_->Execute("BEGIN IMMEDIATE").ok() && database_->Execute("DELETE FROM rows").ok());
    JournalMark last;
    while (input.size() >= 3) {
      const auto odd = static_cast<unsigned char>(input[0]), number = static_cast<unsigned char>(input[1]);
      const std::string_view body = input.substr(3, static_cast<unsigned char>(input[2]));
      input.remove_prefix(3 + body.size());
      if ((odd & kNumber) != 0) last.n += static_cast<uint64_t>(static_cast<int64_t>(number) - 100);
      const bool snapshot = (odd & kSnapshot) != 0;
      const std::string hash = server::HashOfRow(last, snapshot, body);
      Insert(odd, last, snapshot, body, hash);
      last = {last.n + 1, hash};
    }
    CHECK(database_->Execute("COMMIT").ok());
    CHECK(database_->Settle().ok());
  }

  absl::StatusOr<server::JournalRows> Read() { return server::ReadRows(*database_, path_); }

 private:
  void Insert(unsigned odd, const JournalMark& last, bool snapshot, std::string_view body, const std::string& hash) {
    const char* values[] = {"?1", "?2", "?3", "?4", "?5"};
    constexpr const char* kTypes[] = {"NULL", "'text'", "1.5", "9223372036854775807", "-1", "zeroblob(0)"};
    if ((odd & kType) != 0) values[(odd >> 5) % 5] = kTypes[(odd >> 5) * body.size() % 6];
    std::string sql = "INSERT INTO rows VALUES(";
    for (int i = 0; i < 5; ++i) sql += std::string(i == 0 ? "" : ",") + values[i];
    auto insert = database_->Prepare(sql + ")");
    CHECK(insert.ok()) << insert.status();
    std::string previous = last.hash, own = hash;
    if ((odd & kPrevious) != 0) previous[odd % previous.size()] ^= 1;
    if ((odd & kHash) != 0) own.resize(odd % own.size());
    const auto bound = [&](int i) { return values[i][0] == '?'; };
    if (bound(0)) insert->BindInteger(1, static_cast<int64_t>(last.n + 1));
    if (bound(1)) insert->BindInteger(2, snapshot ? 1 : 0);
    if (bound(2)) insert->BindBlob(3, body);
    if (bound(3)) insert->BindBlob(4, previous);
    if (bound(4)) insert->BindBlob(5, own);
    CHECK(insert->Run().ok());
  }

  const Scratch scratch_;
  const std::string path_;
  std::optional<server::Database> database_;
};

std::string Row(unsigned odd, unsigned number, const std::string& body) {
  return std::string{static_cast<char>(odd), static_cast<char>(number), static_cast<char>(body.size())} + body;
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string three = Row(0, 0, "a") + Row(0, 0, "bb") + Row(0, 0, "");
  return {three,
          Row(kNumber | kSnapshot, 109, "all") + three,
          Row(kSnapshot, 0, "all") + three,
          three + Row(kNumber, 101, "c"),
          three + Row(kPrevious, 0, "c"),
          three + Row(kHash, 0, "c"),
          three + Row(kType, 0, "c")};
}

}  // namespace stemma::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stemma;
  static fuzz::Table table;
  table.Fill({reinterpret_cast<const char*>(data), size});
  const auto rows = table.Read();
  if (!rows.ok()) {
    CHECK(absl::IsDataLoss(rows.status())) << rows.status();
    return 0;
  }
  CHECK_EQ(rows->entries.size(), rows->hashes.size());
  CHECK(rows->entries.empty() || (rows->entries[0].n >= 1 && rows->entries[0].n <= INT64_MAX));
  server::JournalMark last = rows->before;
  for (size_t i = 0; i < rows->entries.size(); ++i) {
    CHECK_EQ(rows->entries[i].n, last.n + 1);
    const std::string& body = rows->entries[i].body;
    const bool plain = rows->hashes[i] == server::HashOfRow(last, /*snapshot=*/false, body);
    CHECK(plain || (i == 0 && rows->hashes[i] == server::HashOfRow(last, /*snapshot=*/true, body)));
    CHECK(i > 0 || !plain || last.n == 0);
    last = {rows->entries[i].n, rows->hashes[i]};
  }
  return 0;
}
