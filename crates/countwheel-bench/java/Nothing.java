/** No timer at all, to see what the virtual machine does by itself: it is only idle. */
final class Nothing implements Peer {
    @Override
    public Object schedule(long milliseconds, long id) {
        return this;
    }

    @Override
    public Object call(long nanoseconds, Runnable work) {
        work.run();
        return this;
    }

    @Override
    public boolean cancel(Object handle) {
        return true;
    }

    public static void main(String[] arguments) throws Exception {
        Bench.main(new Nothing(), arguments);
    }
}
