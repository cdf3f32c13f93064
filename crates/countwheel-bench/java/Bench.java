import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * The workloads on the real clock, for peers in Java. They do what those in Rust do, with the same
 * numbers, and print the same figures on one line. What is timed has been done once before, in the
 * same process, so that it is compiled.
 *
 * <p>Arguments: an option of the peer, the workload, its load, and how much there is to do.
 */
final class Bench {
    private static final int WINDOW = 1000;
    private static final int SAMPLED = 16;
    private static final int BATCH = 64;
    private static final int MESSAGES = 4;
    private static final int PORTION = 10_000;
    private static final long LEAST_NANOS = 500_000_000L;
    private static final long WARM_UP_SPREAD_MICROS = 1_000_000;
    private static final long PATIENCE_SECONDS = 30;
    private static final long CALM_MILLIS = 3_000;

    private static final AtomicLong TALLY = new AtomicLong();

    private Bench() {}

    static void main(Peer peer, String[] arguments) throws Exception {
        String workload = arguments[1];
        int load = Integer.parseInt(arguments[2]);
        long howMuch = Long.parseLong(arguments[3]);
        Map<String, Double> figures;
        switch (workload) {
            case "w4":
            case "w4x":
                boolean crossing = workload.equals("w4x");
                churn(peer, crossing, load, (int) howMuch);
                figures = churn(peer, crossing, load, (int) howMuch);
                break;
            case "w5":
                lateness(peer, load, Math.min(howMuch, WARM_UP_SPREAD_MICROS));
                figures = lateness(peer, load, howMuch);
                break;
            case "w6t":
                figures = memory(peer, load);
                break;
            case "w7":
                figures = idle(peer, load, howMuch);
                break;
            case "exact":
                figures = new Exact(peer, load).check();
                break;
            default:
                throw new IllegalArgumentException("no workload is called " + workload);
        }
        List<String> pairs = new ArrayList<>();
        figures.forEach((name, value) -> pairs.add("\"" + name + "\":" + value));
        System.out.println("{" + String.join(",", pairs) + "}");
        System.exit(0);
    }

    static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }

    static void tally(long id) {
        TALLY.addAndGet(id);
    }

    /** The generator called splitmix64. */
    static final class SplitMix {
        private long state;

        SplitMix(long seed) {
            state = seed;
        }

        long below(long bound) {
            state += 0x9e3779b97f4a7c15L;
            long x = state;
            x = (x ^ (x >>> 30)) * 0xbf58476d1ce4e5b9L;
            x = (x ^ (x >>> 27)) * 0x94d049bb133111ebL;
            return Long.remainderUnsigned(x ^ (x >>> 31), bound);
        }
    }

    private static int[] delays(long thread, int count, long least, long range) {
        SplitMix numbers = new SplitMix(42 + thread);
        int[] delays = new int[count];
        for (int i = 0; i < count; i++) {
            delays[i] = (int) (least + numbers.below(range + 1));
        }
        return delays;
    }

    /** Waits until the peer has done what it put off: a timer scheduled now has fired. */
    private static void settle(Peer peer) throws InterruptedException {
        CountDownLatch fired = new CountDownLatch(1);
        peer.call(1_000_000, fired::countDown);
        if (!fired.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException("a timer of a millisecond does not fire");
        }
    }

    /** The kernel counts it in hundredths of a second here. */
    private static double processorNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    private static double percentile(long[] sorted, double part) {
        if (sorted.length == 0) {
            return 0;
        }
        int wanted = (int) Math.ceil(part * sorted.length);
        return sorted[Math.max(wanted, 1) - 1];
    }

    // W4 and W4x

    private static final class Part {
        long from;
        long to;
        long[] samples = new long[0];
        int late;
    }

    private interface Sink {
        void put(Object handle) throws InterruptedException;

        /** Comes to an end, and says how many cancels came too late. */
        int finish() throws InterruptedException;
    }

    private static final class Window implements Sink {
        private final Peer peer;
        private final Object[] ring = new Object[WINDOW];
        private int place;
        private int late;

        Window(Peer peer) {
            this.peer = peer;
        }

        @Override
        public void put(Object handle) {
            Object old = ring[place];
            ring[place] = handle;
            cancel(old);
            place = (place + 1) % WINDOW;
        }

        @Override
        public int finish() {
            for (Object old : ring) {
                cancel(old);
            }
            return late;
        }

        private void cancel(Object old) {
            if (old != null && !peer.cancel(old)) {
                late++;
            }
        }
    }

    private static final class Batches implements Sink {
        private final BlockingQueue<Object[]> queue;
        private Object[] batch = new Object[BATCH];
        private int length;

        Batches(BlockingQueue<Object[]> queue) {
            this.queue = queue;
        }

        @Override
        public void put(Object handle) throws InterruptedException {
            batch[length++] = handle;
            if (length == BATCH) {
                queue.put(batch);
                batch = new Object[BATCH];
                length = 0;
            }
        }

        /** The rest, and an empty batch for the end. */
        @Override
        public int finish() throws InterruptedException {
            queue.put(Arrays.copyOf(batch, length));
            if (length > 0) {
                queue.put(new Object[0]);
            }
            return 0;
        }
    }

    private static Part produce(Peer peer, int thread, int schedules, CyclicBarrier gate, Sink sink)
            throws Exception {
        int[] delays = delays(thread, schedules, 5_000, 55_000);
        Part part = new Part();
        long[] samples = new long[(schedules + SAMPLED - 1) / SAMPLED];
        gate.await();
        gate.await();
        part.from = System.nanoTime();
        for (int id = 0; id < schedules; id++) {
            Object handle;
            if (id % SAMPLED == 0) {
                long from = System.nanoTime();
                handle = peer.schedule(delays[id], id);
                samples[id / SAMPLED] = System.nanoTime() - from;
            } else {
                handle = peer.schedule(delays[id], id);
            }
            sink.put(handle);
        }
        part.late = sink.finish();
        part.to = System.nanoTime();
        part.samples = samples;
        return part;
    }

    private static Part consume(Peer peer, BlockingQueue<Object[]> queue, CyclicBarrier gate)
            throws Exception {
        Part part = new Part();
        Window window = new Window(peer);
        gate.await();
        gate.await();
        part.from = System.nanoTime();
        for (Object[] batch = queue.take(); batch.length > 0; batch = queue.take()) {
            for (Object handle : batch) {
                window.put(handle);
            }
        }
        part.late = window.finish();
        part.to = System.nanoTime();
        return part;
    }

    private static Map<String, Double> churn(Peer peer, boolean crossing, int threads, int schedules)
            throws Exception {
        CyclicBarrier gate = new CyclicBarrier(threads + 1);
        List<Callable<Part>> roles = new ArrayList<>();
        for (int i = 0; i < (crossing ? threads / 2 : threads); i++) {
            int number = i;
            if (crossing) {
                BlockingQueue<Object[]> queue = new ArrayBlockingQueue<>(MESSAGES);
                roles.add(() -> produce(peer, number, schedules, gate, new Batches(queue)));
                roles.add(() -> consume(peer, queue, gate));
            } else {
                roles.add(() -> produce(peer, number, schedules, gate, new Window(peer)));
            }
        }
        List<FutureTask<Part>> tasks = new ArrayList<>();
        for (Callable<Part> role : roles) {
            FutureTask<Part> task = new FutureTask<>(role);
            tasks.add(task);
            daemon(task).start();
        }
        gate.await();
        double processor = processorNanos();
        gate.await();
        long from = Long.MAX_VALUE;
        long to = Long.MIN_VALUE;
        int late = 0;
        List<long[]> samples = new ArrayList<>();
        for (FutureTask<Part> task : tasks) {
            Part part = task.get();
            // What nanoTime gives may be negative, but not within 292 years of its overflow.
            from = Math.min(from, part.from);
            to = Math.max(to, part.to);
            late += part.late;
            samples.add(part.samples);
        }
        long ended = System.nanoTime();
        settle(peer);
        double settled = (System.nanoTime() - ended) / 1e6;
        processor = processorNanos() - processor;
        if (late > 0) {
            throw new IllegalStateException(
                    late + " timers fired before their cancel, which is far too early");
        }

        long[] sorted = samples.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        double operations = 2.0 * schedules * (crossing ? threads / 2 : threads);
        Map<String, Double> figures = new LinkedHashMap<>();
        figures.put("mops", operations / Math.max(to - from, 1) * 1e3);
        figures.put("cpu", processor / operations);
        figures.put("p50", percentile(sorted, 0.5));
        figures.put("p99", percentile(sorted, 0.99));
        figures.put("p99.9", percentile(sorted, 0.999));
        figures.put("max", percentile(sorted, 1.0));
        figures.put("settle", settled);
        return figures;
    }

    // W5

    private static Map<String, Double> lateness(Peer peer, int timers, long spreadMicros)
            throws Exception {
        SplitMix numbers = new SplitMix(42);
        long[] delays = new long[timers];
        for (int i = 0; i < timers; i++) {
            delays[i] = LEAST_NANOS + 1000 * numbers.below(spreadMicros + 1);
        }
        long[] lateness = new long[timers];
        CountDownLatch left = new CountDownLatch(timers);
        double processor = processorNanos();
        for (int i = 0; i < timers; i++) {
            int timer = i;
            long due = System.nanoTime() + delays[i];
            peer.call(
                    delays[i],
                    () -> {
                        lateness[timer] = System.nanoTime() - due;
                        left.countDown();
                    });
        }
        long patience = LEAST_NANOS / 1_000_000 + spreadMicros / 1000 + PATIENCE_SECONDS * 1000;
        if (!left.await(patience, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(
                    left.getCount() + " of " + timers + " timers have not fired");
        }
        processor = processorNanos() - processor;

        Arrays.sort(lateness);
        Map<String, Double> figures = new LinkedHashMap<>();
        figures.put("min", percentile(lateness, 0.0) / 1e3);
        figures.put("p50", percentile(lateness, 0.5) / 1e3);
        figures.put("p99", percentile(lateness, 0.99) / 1e3);
        figures.put("p99.9", percentile(lateness, 0.999) / 1e3);
        figures.put("max", percentile(lateness, 1.0) / 1e3);
        figures.put("early", (double) Arrays.stream(lateness).filter(late -> late < 0).count());
        figures.put("cpu", processor / 1e6);
        return figures;
    }

    // W6t

    private static double usedBytes() throws InterruptedException {
        for (int i = 0; i < 3; i++) {
            System.gc();
            Thread.sleep(50);
        }
        Runtime runtime = Runtime.getRuntime();
        return runtime.totalMemory() - runtime.freeMemory();
    }

    private static Map<String, Double> memory(Peer peer, int timers) throws Exception {
        int[] delays = delays(0, timers, 60_000, 60_000);
        Object[] handles = new Object[timers];
        settle(peer);
        double before = usedBytes();
        for (int id = 0; id < timers; id++) {
            handles[id] = peer.schedule(delays[id], id);
            if (id % PORTION == PORTION - 1) {
                settle(peer);
            }
        }
        settle(peer);
        double each = (usedBytes() - before) / timers;
        // The handles have to be there until here.
        tally(handles.length + delays.length);
        Map<String, Double> figures = new LinkedHashMap<>();
        figures.put("bytes", each);
        figures.put("with-handle", each + 4);
        return figures;
    }

    // W7

    /** A number of each thread of this process but the calling one. */
    private static Map<String, Double> ofOthers(String file, String field) throws IOException {
        String self = Files.readSymbolicLink(Paths.get("/proc/thread-self")).getFileName().toString();
        Map<String, Double> numbers = new HashMap<>();
        try (DirectoryStream<Path> tasks = Files.newDirectoryStream(Paths.get("/proc/self/task"))) {
            for (Path task : tasks) {
                String thread = task.getFileName().toString();
                if (thread.equals(self)) {
                    continue;
                }
                try {
                    for (String line : Files.readAllLines(task.resolve(file))) {
                        if (line.startsWith(field)) {
                            String number = line.substring(field.length()).trim().split(" ")[0];
                            numbers.put(thread, Double.parseDouble(number));
                            break;
                        }
                    }
                } catch (NoSuchFileException ended) {
                    // The thread has ended since it was listed.
                }
            }
        }
        return numbers;
    }

    private static double growth(Map<String, Double> before, Map<String, Double> after) {
        double growth = 0;
        for (Map.Entry<String, Double> thread : after.entrySet()) {
            growth += thread.getValue() - before.getOrDefault(thread.getKey(), 0.0);
        }
        return growth;
    }

    private static Map<String, Double> idle(Peer peer, int timers, long idleMillis) throws Exception {
        peer.cancel(peer.schedule(3_600_000, 0));
        int[] delays = delays(0, timers, 3_600_000, 3_600_000);
        Object[] handles = new Object[timers];
        for (int id = 0; id < timers; id++) {
            handles[id] = peer.schedule(delays[id], id);
        }
        settle(peer);
        // Once for nothing, so that the classes are there.
        ofOthers("schedstat", "");
        ofOthers("status", "voluntary_ctxt_switches:");
        usedBytes();
        Thread.sleep(CALM_MILLIS);

        Map<String, Double> switches = ofOthers("status", "voluntary_ctxt_switches:");
        Map<String, Double> processor = ofOthers("schedstat", "");
        Thread.sleep(idleMillis);
        double nanos = growth(processor, ofOthers("schedstat", ""));
        double switched = growth(switches, ofOthers("status", "voluntary_ctxt_switches:"));
        tally(handles.length);
        Map<String, Double> figures = new LinkedHashMap<>();
        figures.put("cpu", nanos / 1e6);
        figures.put("switches", switched);
        return figures;
    }

    /** The check: exactly those that were not cancelled fire. */
    private static final class Exact {
        private static final int TIMERS = 500;
        private static final int LONGEST = 200;
        private static final int LEAST_CANCELLED = 100;
        private static final long AFTERMATH_MILLIS = 400;

        private final Peer peer;
        private final int threads;
        private final AtomicIntegerArray fired;
        private final AtomicLongArray lateness;
        /** Whether the timer has to fire. */
        private final AtomicIntegerArray fires;

        Exact(Peer peer, int threads) {
            this.peer = peer;
            this.threads = threads;
            fired = new AtomicIntegerArray(threads * TIMERS);
            lateness = new AtomicLongArray(threads * TIMERS);
            fires = new AtomicIntegerArray(threads * TIMERS);
        }

        private void schedule(int thread) {
            SplitMix numbers = new SplitMix(42 + thread);
            for (int i = 0; i < TIMERS; i++) {
                int timer = thread * TIMERS + i;
                boolean isCancelled = numbers.below(2) == 0;
                long least = isCancelled ? LEAST_CANCELLED : 1;
                long delay = 1_000_000 * (least + numbers.below(LONGEST + 1 - least));
                long due = System.nanoTime() + delay;
                Object handle =
                        peer.call(
                                delay,
                                () -> {
                                    lateness.set(timer, System.nanoTime() - due);
                                    fired.incrementAndGet(timer);
                                });
                boolean cancelled = isCancelled && peer.cancel(handle);
                fires.set(timer, cancelled ? 0 : 1);
            }
        }

        private long missing() {
            long missing = 0;
            for (int timer = 0; timer < fires.length(); timer++) {
                missing += fires.get(timer) == 1 && fired.get(timer) == 0 ? 1 : 0;
            }
            return missing;
        }

        Map<String, Double> check() throws InterruptedException {
            List<Thread> started = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                int thread = i;
                started.add(daemon(() -> schedule(thread)));
            }
            for (Thread thread : started) {
                thread.start();
            }
            for (Thread thread : started) {
                thread.join();
            }
            long from = System.nanoTime();
            while (missing() > 0 && System.nanoTime() - from < 5_000_000_000L) {
                Thread.sleep(10);
            }
            Thread.sleep(AFTERMATH_MILLIS);

            double count = 0;
            double twice = 0;
            double cancelled = 0;
            double early = 0;
            long min = Long.MAX_VALUE;
            for (int timer = 0; timer < fires.length(); timer++) {
                int times = fired.get(timer);
                if (times == 0) {
                    continue;
                }
                count++;
                twice += times > 1 ? 1 : 0;
                cancelled += fires.get(timer) == 0 ? 1 : 0;
                early += lateness.get(timer) < 0 ? 1 : 0;
                min = Math.min(min, lateness.get(timer));
            }
            Map<String, Double> figures = new LinkedHashMap<>();
            figures.put("fired", count);
            figures.put("missing", (double) missing());
            figures.put("twice", twice);
            figures.put("cancelled", cancelled);
            figures.put("early", early);
            figures.put("min", count == 0 ? 0 : min / 1e3);
            return figures;
        }
    }
}
