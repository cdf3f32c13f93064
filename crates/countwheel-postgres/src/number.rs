//! Unsigned numbers in columns that are signed.

/// As a column has it: the top bit is flipped, so the order stays.
pub(crate) fn stored(number: u64) -> i64 {
    (number ^ 1 << 63).cast_signed()
}

/// The number of a column.
pub(crate) fn read(stored: i64) -> u64 {
    stored.cast_unsigned() ^ 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_stays() {
        let numbers = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX];
        let columns = numbers.map(stored);
        assert!(columns.is_sorted());
        assert_eq!(columns.map(read), numbers);
    }
}
