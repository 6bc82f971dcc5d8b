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
  const TlsValidities ends = {.cert = {kNoon + 90 * kDay, 90 * kDay}};
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
  const TlsValidities ends = {.cert = {kNoon + 7 * kDay, 90 * kDay}};
  EXPECT_EQ(TextOf(news.Look(ends, kNoon - absl::Seconds(1))), "");
  EXPECT_EQ(TextOf(news.Look(ends, kNoon)),
            "warning: the certificate of --tls-cert ends at 2030-01-08 12:00 UTC: renew it; it is read again without a "
            "restart");
  EXPECT_EQ(TextOf(news.Look(ends, kNoon + kDay - absl::Seconds(1))), "");
  EXPECT_NE(TextOf(news.Look(ends, kNoon + kDay)), "");
  EXPECT_EQ(TextOf(news.Look(TlsValidities{.cert = {kNoon + 97 * kDay, 90 * kDay}}, kNoon + 2 * kDay)), "")
      << "it was renewed";
}

TEST(CertificateNewsTest, OneOfADayIsWarnedOfInItsLastQuarter) {
  CertificateNews news;
  const TlsValidities ends = {.cert = {kNoon + kDay, kDay}};
  EXPECT_EQ(TextOf(news.Look(ends, kNoon + absl::Hours(17))), "");
  EXPECT_NE(TextOf(news.Look(ends, kNoon + absl::Hours(18))), "");
}

TEST(CertificateNewsTest, ACaIsWarnedOfBesideTheCertificate) {
  CertificateNews news;
  const TlsValidities ends = {.cert = {kNoon + kDay, 90 * kDay}, .ca = {kNoon + 3 * kDay, 900 * kDay}};
  EXPECT_NE(TextOf(news.Look(ends, kNoon)).find("the certificate of --tls-cert ends at 2030-01-02"), std::string::npos);
  EXPECT_NE(TextOf(news.Look(ends, kNoon)).find("the last certificate in --tls-ca ends at 2030-01-04"),
            std::string::npos);
  EXPECT_EQ(TextOf(news.Look(ends, kNoon)), "");
}

}  // namespace
}  // namespace stemma::server
