#include "server/rpc/certificate_news.h"

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

const absl::Time kNoon = absl::FromCivil(absl::CivilSecond(2030, 1, 1, 12, 0, 0), absl::UTCTimeZone());
constexpr absl::Duration kDay = absl::Hours(24);

std::string TextOf(const std::optional<CertificateNews::Line>& line) {
  return !line ? "" : (line->is_warning ? "warning: " : "info: ") + line->text;
}

TEST(CertificateNewsTest, SaysAProblemOnceAndItsEnd) {
  CertificateNews news;
  const TlsValidity ends = {kNoon + 90 * kDay, 90 * kDay};
  EXPECT_EQ(TextOf(news.Look(ends, kNoon)), "");
  EXPECT_EQ(TextOf(news.Look(absl::InvalidArgumentError("--tls-key: a"), kNoon)),
            "warning: new connections may fail in TLS: --tls-key: a");
  EXPECT_EQ(TextOf(news.Look(absl::InvalidArgumentError("--tls-key: a"), kNoon)), "");
  EXPECT_EQ(TextOf(news.Look(absl::InvalidArgumentError("--tls-key: b"), kNoon)),
            "warning: new connections may fail in TLS: --tls-key: b");
  EXPECT_EQ(TextOf(news.Look(ends, kNoon)), "info: the files of TLS are whole again");
  EXPECT_EQ(TextOf(news.Look(ends, kNoon)), "");
}

TEST(CertificateNewsTest, WarnsOnceADayInTheLastWeek) {
  CertificateNews news;
  const TlsValidity ends = {kNoon + 7 * kDay, 90 * kDay};
  EXPECT_EQ(TextOf(news.Look(ends, kNoon - absl::Seconds(1))), "");
  EXPECT_EQ(
      TextOf(news.Look(ends, kNoon)),
      "warning: the certificate of --tls-cert, or the last of --tls-ca, ends at 2030-01-08 12:00 UTC: renew it; it is "
      "read again without a restart");
  EXPECT_EQ(TextOf(news.Look(ends, kNoon + kDay - absl::Seconds(1))), "");
  EXPECT_NE(TextOf(news.Look(ends, kNoon + kDay)), "");
  EXPECT_EQ(TextOf(news.Look(TlsValidity{kNoon + 97 * kDay, 90 * kDay}, kNoon + 2 * kDay)), "") << "it was renewed";
}

TEST(CertificateNewsTest, OneOfADayIsWarnedOfInItsLastThird) {
  CertificateNews news;
  const TlsValidity ends = {kNoon + kDay, kDay};
  EXPECT_EQ(TextOf(news.Look(ends, kNoon + absl::Hours(15))), "");
  EXPECT_NE(TextOf(news.Look(ends, kNoon + absl::Hours(16))), "");
}

}  // namespace
}  // namespace stemma::server
