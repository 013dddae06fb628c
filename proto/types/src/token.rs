use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// First characters of a token, by which scanners of logs and repositories know one.
const PREFIX: &str = "mct_";
/// Bytes of a token that are drawn at random.
const LEN: usize = 32;
/// Context of the hashes of tokens. Nothing else is hashed with it.
const HASHES: &str = "mc 2026-11 hashes of tokens";

/// A secret that proves who calls, for callers without a certificate of their own: `mct_` and 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Hash of a [`Token`], by which masters know it. With 256 random bits in a token, no hash need be slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenHash(pub [u8; 32]);

/// Invalid token. The error omits the text, which may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a token of mc: one begins with {PREFIX} and has 64 hexadecimal digits after it")]
pub struct ParseTokenError;

impl Token {
    /// Draws a token.
    #[must_use]
    pub fn random() -> Self {
        let digits: String = rand::random::<[u8; LEN]>().iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{PREFIX}{digits}"))
    }

    /// The token itself, to be shown to masters alone.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Its hash.
    #[must_use]
    pub fn hash(&self) -> TokenHash {
        TokenHash(blake3::derive_key(HASHES, self.0.as_bytes()))
    }
}

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let digits = text.strip_prefix(PREFIX).filter(|digits| digits.len() == 2 * LEN);
        let is_token = digits
            .is_some_and(|digits| digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
        if is_token { Ok(Self(text.to_owned())) } else { Err(ParseTokenError) }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_drawn_and_shown_nowhere() {
        let token = Token::random();
        assert_eq!(token.secret().parse(), Ok(token.clone()));
        assert_ne!(token, Token::random());
        assert_eq!(format!("{token:?} {:?}", token.hash()), "Token(..) TokenHash(..)");
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_shown() {
        let token = Token::random();
        let upper = token.secret().to_uppercase();
        for text in ["", "mct_", &upper, &token.secret()[1..], &format!("{}0", token.secret()), "mct_é"] {
            let error = text.parse::<Token>().unwrap_err().to_string();
            assert!(text.is_empty() || text == PREFIX || !error.contains(text), "{error}");
        }
    }

    /// Masters of different builds compare hashes.
    #[test]
    fn a_hash_is_the_same_in_every_build() {
        let token: Token = format!("{PREFIX}{}", "0".repeat(2 * LEN)).parse().unwrap();
        let hash: String = token.hash().0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, "c6ca86b8eaed21e812184710702da1d762a644c94beff49cef67359582343fdc");
    }
}
